"""Solo: every client trains its own model on its own data; nothing travels.

The baseline "Solo" of the FUELS paper (Section 5.1). Loss: Eq. 14. Stays: everything.
"""

from __future__ import annotations

from fuels.methods.base import Method, Sent
from fuels.methods.messages import Arrays, Download
from fuels.training.groups import Group


class Solo(Method):
    name = "solo"
    title = "Solo"
    sends = receives = "nothing"

    def local(self, group: Group, download: Download) -> Arrays:
        self.fit(group)
        return {}

    def uploads(self, round_number: int) -> dict[str, Sent]:
        return {}
