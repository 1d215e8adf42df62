"""Whether a swap from outside might end the engine. Pure."""

from __future__ import annotations

from sidecar.observed import DrainEvidence


def swap_risk(name: str, evidence: DrainEvidence, *, listed: int, max_loras: int | None) -> str:
    """Why a swap of `name` by unload and load might end the engine at this moment; empty: it does not.

    vLLM takes two versions of a name for one adapter where requests of both are in a batch, and gives a slot to one of
    them only (decision 15). So either there is a slot for everything, or no request of the old version may be left.

    Args:
        name: whose weights are to be replaced.
        evidence: which requests there are.
        listed: how many adapters the engine lists.
        max_loras: its slots; None: it does not say, which it does from the first request for an adapter on.
    """
    # The old version beside the new one, and the name under which the new one is proven.
    needed = listed + 2
    if max_loras is None or needed <= max_loras or evidence.is_clear_of({name}):
        return ""
    return (
        f"requests for {name} are under way, and the engine has {max_loras} slots for {listed} adapters: replacing it "
        "now could end the engine. It is tried again when none is; to replace it at once, give vLLM LoraPlane's plugin "
        f"or --max-loras {needed}"
    )
