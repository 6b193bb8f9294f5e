//! Which version it takes to write a command.

use super::{
    Batch, BatchOperation, Command, CommandVersion, Compare, CompareTarget, Put, PutLease, Request,
};

impl Request {
    /// The oldest version that can say it: [`CommandVersion::V4`] for a put that keeps the value of
    /// its key, a batch within a batch, a read of a batch that is whole, and whatever is about
    /// leases.
    ///
    /// Until every member reads that version it can't be proposed.
    #[must_use]
    pub fn version_needed(&self) -> CommandVersion {
        match self.command.is_new() {
            true => CommandVersion::V4,
            false => CommandVersion::OLDEST,
        }
    }

    /// The version in which it is written where every member reads up to `read_by_all`. That is not
    /// above version 3 unless it has to be, so that an older program reads as much of a log as it
    /// can.
    pub(super) fn version_written(&self, read_by_all: CommandVersion) -> CommandVersion {
        read_by_all
            .min(CommandVersion::V3)
            .max(self.version_needed())
    }
}

impl Command {
    /// Whether it takes version 4.
    fn is_new(&self) -> bool {
        match self {
            Self::Put(put) => put.is_new(),
            Self::Batch(batch) => batch.is_new(),
            Self::GrantLease { .. }
            | Self::RevokeLease { .. }
            | Self::ExpireLease { .. }
            | Self::CheckpointLeases { .. } => true,
            Self::Delete { .. }
            | Self::CompareAndSwap { .. }
            | Self::Compact { .. }
            | Self::OpenSession { .. }
            | Self::KeepAlive { .. }
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. }
            | Self::ExpireKeys { .. } => false,
        }
    }
}

impl Put {
    /// Whether it takes version 4.
    fn is_new(&self) -> bool {
        self.ignore_value || self.lease != PutLease::None
    }
}

impl Batch {
    /// Whether it takes version 4.
    pub(crate) fn is_new(&self) -> bool {
        let is_about_lease = |compare: &Compare| matches!(compare.target, CompareTarget::Lease(_));
        // Those of batches within it are new anyway.
        let compares_lease = self.compares.iter().any(is_about_lease);
        compares_lease
            || self.any_operation(&|operation| match operation {
                BatchOperation::Put(put) => put.is_new(),
                BatchOperation::Range(_) | BatchOperation::Batch(_) => true,
                BatchOperation::Delete { .. } | BatchOperation::Get { .. } => false,
            })
    }
}
