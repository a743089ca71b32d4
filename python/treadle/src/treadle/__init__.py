"""Client of Treadle's action service, `treadle actions serve`.

`Actions` is the plain client, `AsyncActions` the one for asyncio; adapters for other frameworks are in `treadle.adapters`.
"""

from .action import AsyncAction
from .aio import AsyncActions, AsyncSession, AsyncSnapshot, AsyncTrajectory
from .archive import Limits
from .client import Action, Actions, Lease, Session, Snapshot, Trajectory
from .errors import ActionCancelled, ActionsError, CommandFailed, DeadlineExceeded, RequestFailed, SandboxLost
from .leases import AsyncLease, AsyncQuota
from .requests import (
    Amdahl,
    Amount,
    Between,
    Efficiency,
    Elasticity,
    OneOf,
    Power,
    Profile,
    Retry,
    Seconds,
    Tls,
)
from .results import Event, Finished, Output, Queued, Result, Started

__all__ = [
    "Action",
    "ActionCancelled",
    "Actions",
    "ActionsError",
    "Amdahl",
    "Amount",
    "AsyncAction",
    "AsyncActions",
    "AsyncLease",
    "AsyncQuota",
    "AsyncSession",
    "AsyncSnapshot",
    "AsyncTrajectory",
    "Between",
    "CommandFailed",
    "DeadlineExceeded",
    "Efficiency",
    "Elasticity",
    "Event",
    "Finished",
    "Lease",
    "Limits",
    "OneOf",
    "Output",
    "Power",
    "Profile",
    "Queued",
    "RequestFailed",
    "Result",
    "Retry",
    "SandboxLost",
    "Seconds",
    "Session",
    "Snapshot",
    "Started",
    "Tls",
    "Trajectory",
]
