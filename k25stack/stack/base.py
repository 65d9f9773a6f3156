"""What every section of the stack file shares: strictness and a few number types.

Every key names its unit (``shard_bytes``, ``budget_s``, ``packed_tokens``); there are no "1 GiB" strings and no
interpolation, so a value in the file is the value that is used.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A part of the stack file: typed strictly, unknown keys refused, never changed after loading."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def problem(message: str, *path: str | int) -> PydanticCustomError:
    """An error of a validator; ``path`` leads from the checked section to the value to change."""
    return PydanticCustomError("disagree", "{message}", {"message": message, "path": path})


Positive: TypeAlias = Annotated[int, Field(gt=0)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
PositiveFloat: TypeAlias = Annotated[float, Field(gt=0)]
NonNegativeFloat: TypeAlias = Annotated[float, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
Sha256: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest: TypeAlias = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Version: TypeAlias = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)*([.+-]?[a-z0-9]+)*$")]
Scalar: TypeAlias = bool | int | float | str
