//! Marks in a data directory about how its member ended, and whether the member may take part with
//! it.
//!
//! A `memory-first` member acknowledges writes before they are on its disk. If the machine lost
//! power since, acknowledged writes may be missing; if the member then voted or acknowledged again,
//! an acknowledged write could be lost although a majority had it. The power mark records under
//! which boot of the machine the member ran, and how it ended. The other mark records that the
//! cluster has given this member's history up.
//!
//! This module decides what is written and when; `admission` and `power` store it in files, and the
//! simulator keeps it in memory.

use dengine_planted::planted;
use serde::{Deserialize, Serialize};

/// In place of a boot id; equals the id of no boot.
const SYNC_FAILED: &str = "none, a sync failed";

/// Whether a `memory-first` member may have lost writes that it acknowledged. The mark exists from
/// the first start with `memory-first` on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerMark {
    /// The boot id of the machine under which the member ran.
    pub boot_id: String,
    /// Everything acknowledged was on disk when the member ended, or a person has accepted the
    /// loss.
    pub clean: bool,
    /// A person has accepted that writes are lost, and the member has not started since then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost_writes_accepted: bool,
}

impl PowerMark {
    /// Acknowledged writes may be missing on the disk, even if the machine does not lose power.
    /// This mark need not be durable, and the failed disk may refuse it: after a reboot the data
    /// directory is suspect anyway.
    #[must_use]
    pub fn sync_failed() -> Self {
        Self {
            boot_id: SYNC_FAILED.to_owned(),
            clean: false,
            lost_writes_accepted: false,
        }
    }

    /// A person has accepted the loss of what may be missing: the member may start, even if its log
    /// lost more than its state.
    #[must_use]
    pub fn loss_accepted(boot_id: &str) -> Self {
        Self {
            boot_id: boot_id.to_owned(),
            clean: true,
            lost_writes_accepted: true,
        }
    }

    /// The member has started after an accepted loss, so that a later loss has to be accepted
    /// again.
    #[must_use]
    pub fn started(self) -> Self {
        Self {
            lost_writes_accepted: false,
            ..self
        }
    }

    /// Everything that was acknowledged is on disk, and nothing more is acknowledged before it is.
    #[must_use]
    pub fn ended(self) -> Self {
        Self {
            clean: true,
            ..self
        }
    }

    fn is_suspect(&self, boot_id: &str) -> bool {
        if planted!(TrustedAfterFailedSync) && self.boot_id == SYNC_FAILED {
            return false;
        }
        !self.clean && self.boot_id != boot_id
    }
}

/// All marks of a data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Why the history of this member was given up, if it was.
    pub given_up: Option<String>,
    /// Present if the member is or was `memory-first`.
    pub power: Option<PowerMark>,
}

/// Why a member must not take part with its data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Its history was given up, with the reason.
    GivenUp(String),
    /// Writes that it acknowledged may be missing.
    Suspect,
}

/// The conditions under which a member starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The mark that must be on disk before the member acknowledges anything. It is written even if
    /// it is there already, because that one may not be durable.
    pub mark: Option<PowerMark>,
    /// A person has accepted that writes are lost, and the member has not started since then.
    pub lost_writes_accepted: bool,
    /// The member acknowledges before its disk has the write, or once did: the cluster may have
    /// lost such writes, and a person may have accepted that.
    pub acknowledged_unsynced: bool,
}

impl Marks {
    /// Whether a member may take part with this data directory on a machine with this boot id.
    pub fn check(&self, boot_id: &str) -> Result<(), Unfit> {
        if let Some(reason) = &self.given_up
            && !planted!(GivenUpHistoryStarts)
        {
            return Err(Unfit::GivenUp(reason.clone()));
        }
        match &self.power {
            Some(mark) if mark.is_suspect(boot_id) => Err(Unfit::Suspect),
            _ => Ok(()),
        }
    }

    /// Checks the marks, and decides under which conditions the member starts. With `memory_first`
    /// it acknowledges writes before they are on its disk.
    pub fn begin(&self, boot_id: &str, memory_first: bool) -> Result<Beginning, Unfit> {
        self.check(boot_id)?;
        let power = self.power.as_ref();
        let lost_writes_accepted = power.is_some_and(|mark| mark.lost_writes_accepted);
        let mark = memory_first.then(|| PowerMark {
            boot_id: boot_id.to_owned(),
            clean: false,
            lost_writes_accepted,
        });
        Ok(Beginning {
            mark,
            lost_writes_accepted,
            acknowledged_unsynced: memory_first || power.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(boot_id: &str, clean: bool) -> Marks {
        let power = Some(PowerMark {
            boot_id: boot_id.to_owned(),
            clean,
            lost_writes_accepted: false,
        });
        Marks {
            power,
            ..Marks::default()
        }
    }

    /// Begins under this boot id and stores the mark.
    fn begin(marks: &mut Marks, boot_id: &str, memory_first: bool) -> Beginning {
        let beginning = marks.begin(boot_id, memory_first).expect("it may");
        marks.power = beginning.mark.clone().or(marks.power.take());
        beginning
    }

    #[test]
    fn a_member_with_fsync_leaves_no_mark() {
        let mut marks = Marks::default();
        let beginning = begin(&mut marks, "a", false);
        assert!(!beginning.lost_writes_accepted && !beginning.acknowledged_unsynced);
        assert_eq!(marks, Marks::default());
        assert_eq!(marks.check("b"), Ok(()));
    }

    #[test]
    fn only_a_reboot_without_a_clean_end_makes_it_suspect() {
        for (marks, expected) in [
            (marked("a", false), Ok(())),
            (marked("a", true), Ok(())),
            (marked("b", true), Ok(())),
            (marked("b", false), Err(Unfit::Suspect)),
        ] {
            assert_eq!(marks.check("a"), expected, "{marks:?}");
            for memory_first in [false, true] {
                let begun = marks.begin("a", memory_first);
                assert_eq!(begun.map(|_| ()), expected, "{marks:?}");
            }
        }
    }

    /// The kernel may have dropped pages that it could not write.
    #[test]
    fn a_failed_sync_makes_it_suspect_under_every_boot() {
        let mut marks = Marks::default();
        begin(&mut marks, "a", true);
        marks.power = Some(PowerMark::sync_failed());
        for boot_id in ["a", "b"] {
            assert_eq!(marks.check(boot_id), Err(Unfit::Suspect));
        }
    }

    /// The mark is written at each start, because the last one may not be on disk yet.
    #[test]
    fn every_start_writes_the_mark_again() {
        let mut marks = marked("a", true);
        for boot_id in ["b", "b"] {
            let beginning = begin(&mut marks, boot_id, true);
            assert_eq!(beginning.mark, marked("b", false).power);
        }
        assert_eq!(marks.check("c"), Err(Unfit::Suspect));
        marks.power = marks.power.map(PowerMark::ended);
        assert_eq!(marks.check("c"), Ok(()));
    }

    #[test]
    fn an_accepted_loss_counts_until_the_member_has_started() {
        let mut marks = marked("a", false);
        marks.power = Some(PowerMark::loss_accepted("b"));
        for _ in 0..2 {
            assert!(begin(&mut marks, "b", true).lost_writes_accepted);
        }
        assert_eq!(
            marks.check("c"),
            Err(Unfit::Suspect),
            "a later loss is not accepted"
        );
        marks.power = marks.power.map(PowerMark::started);
        assert!(!begin(&mut marks, "b", true).lost_writes_accepted);
    }

    /// After a change to fsync the mark stays, and so does the suspicion.
    #[test]
    fn a_change_of_durability_keeps_the_mark() {
        let mut marks = marked("a", false);
        let beginning = begin(&mut marks, "a", false);
        assert!(beginning.acknowledged_unsynced);
        assert_eq!(marks, marked("a", false));
        assert_eq!(marks.check("b"), Err(Unfit::Suspect));
        marks.power = marks.power.map(PowerMark::ended);
        assert!(begin(&mut marks, "b", false).acknowledged_unsynced);
        assert_eq!(marks, marked("a", true));
    }

    #[test]
    fn an_accepted_loss_does_not_bring_back_a_given_up_history() {
        let mut marks = marked("a", true);
        marks.given_up = Some("entry 7 differs".to_owned());
        let refused = Err(Unfit::GivenUp("entry 7 differs".to_owned()));
        assert_eq!(marks.check("a"), refused);
        marks.power = Some(PowerMark::loss_accepted("a"));
        assert_eq!(marks.begin("a", true).map(|_| ()), refused);
    }
}
