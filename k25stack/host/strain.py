"""What a card says of heat and slowed clocks, from one reading of nvidia-smi."""

from __future__ import annotations

from k25stack.host.parse.smi import Gpu

REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def margin_c(gpu: Gpu) -> float | None:
    """Degrees to the card's limit, told as such (v13) or limit less temperature; None when the card tells neither."""
    margin = gpu.number("C", "temperature/gpu_temp_tlimit")
    if margin is not None:
        return margin
    now = gpu.number("C", "temperature/gpu_temp")
    limit = gpu.number("C", "temperature/gpu_temp_slow_threshold", "temperature/gpu_temp_max_threshold")
    return None if now is None or limit is None else limit - now


def slowed(gpu: Gpu) -> list[str] | None:
    """Reasons by which heat or power slow the card down now; None when it tells none of them."""
    told = {
        reason: gpu.raw(
            f"clocks_event_reasons/clocks_event_reason_{reason}",
            f"clocks_throttle_reasons/clocks_throttle_reason_{reason}",
        )
        for reason in REASONS
    }
    if not any(text in ("Active", "Not Active") for text in told.values()):
        return None
    return [reason for reason, text in told.items() if text == "Active"]
