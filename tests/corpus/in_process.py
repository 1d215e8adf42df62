"""An examiner without a child, so that what the corpus runs of the check is measured."""

from __future__ import annotations

from pathlib import Path

from registry.lora.base import BaseModules
from registry.lora.policy import Policy
from registry.sources.base import Stop
from sidecar.artifacts.examination import ExaminationAnswer, ExaminationRequest, Examining
from sidecar.artifacts.examiner import Examiner


class InProcessExaminer(Examiner):
    """Gives the child's answers; tests/unit/artifacts/test_examiner.py has the child itself."""

    def warm(self) -> None:
        """Nothing has to be started."""

    def _answer(self, directory: Path, base: BaseModules | None, policy: Policy, stop: Stop) -> ExaminationAnswer:
        stop.check()
        examining = Examining()
        examining._base = base
        request = ExaminationRequest(
            directory=str(directory),
            policy=policy.as_dict(),
            has_base=base is not None,
            base=None,
            memory_bytes=0,
            processor_seconds=0,
        )
        return examining.answer(request)
