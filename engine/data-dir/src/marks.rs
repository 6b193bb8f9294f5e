//! What a data folder says of its member's past, beside log and state, and whether the member may take part with it.
//!
//! A `memory-first` member acknowledges writes before they are on its disk. If the machine lost power since, it may have
//! acknowledged what it no longer has; if it voted or answered for the cluster again, an acknowledged write could be lost
//! although a majority had it. A mark says under which start of the machine the member ran, and how it ended. Another says
//! that the cluster has given this member's history up.
//!
//! What is read and written, and when, is decided here; `dengine-data-dir` knows the files, and the simulator has none.

use dengine_planted::planted;
use serde::{Deserialize, Serialize};

/// In place of a boot id: no start of a machine has this one.
const SYNC_FAILED: &str = "none, a sync failed";

/// What tells whether a `memory-first` member may have lost what it acknowledged; there is one while such a member runs
/// and if one ever ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerMark {
    /// Of the machine's start under which the member ran.
    pub boot_id: String,
    /// The member ended with everything on disk, or a person has accepted what may be missing.
    pub clean: bool,
    /// A person has accepted that writes are lost, and the member has not started since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost_writes_accepted: bool,
}

impl PowerMark {
    /// What was acknowledged may not be on the disk any more, whatever becomes of the machine. It need not be durable, and
    /// the disk that failed may not be able to: another boot makes the folder suspect anyway.
    #[must_use]
    pub fn sync_failed() -> Self {
        Self {
            boot_id: SYNC_FAILED.to_owned(),
            clean: false,
            lost_writes_accepted: false,
        }
    }

    /// A person has decided to go on without what may be missing: the member may start, also if its log lost more than its
    /// state.
    #[must_use]
    pub fn loss_accepted(boot_id: &str) -> Self {
        Self {
            boot_id: boot_id.to_owned(),
            clean: true,
            lost_writes_accepted: true,
        }
    }

    /// The member has started from what there was: the next loss is another one.
    #[must_use]
    pub fn started(self) -> Self {
        Self {
            lost_writes_accepted: false,
            ..self
        }
    }

    /// Everything that was acknowledged is on disk, and nothing more will be acknowledged early.
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

/// All marks of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The cluster goes on without what this member has; how it found out.
    pub given_up: Option<String>,
    /// Whether it may have lost what it acknowledged.
    pub power: Option<PowerMark>,
}

/// Why a member must not take part with its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Its history was given up; how it found out.
    GivenUp(String),
    /// It may have lost what it acknowledged.
    Suspect,
}

/// As what a member begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// What has to be on disk before it acknowledges anything, also if it is there already: nobody knows how durable that is.
    pub mark: Option<PowerMark>,
    /// A person has accepted that writes are lost, and it has not started since.
    pub lost_writes_accepted: bool,
    /// It acknowledges before its disk has it, or once did, so that the cluster may have lost what it acknowledged, and a
    /// person may have accepted that.
    pub acknowledged_unsynced: bool,
}

impl Marks {
    /// Whether a member may take part with this folder, on a machine whose present start has this id.
    ///
    /// # Errors
    /// Why not.
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

    /// A member begins with this folder, and acknowledges before its disk has it if it is `memory_first`.
    ///
    /// # Errors
    /// As [`Marks::check`].
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

    /// Begins under this start of the machine; what the folder says then.
    fn begin(marks: &mut Marks, boot_id: &str, memory_first: bool) -> Beginning {
        let beginning = marks.begin(boot_id, memory_first).expect("it may");
        marks.power = beginning.mark.clone().or(marks.power.take());
        beginning
    }

    #[test]
    fn who_syncs_what_it_acknowledges_leaves_no_mark() {
        let mut marks = Marks::default();
        let beginning = begin(&mut marks, "a", false);
        assert!(!beginning.lost_writes_accepted && !beginning.acknowledged_unsynced);
        assert_eq!(marks, Marks::default());
        assert_eq!(marks.check("b"), Ok(()));
    }

    #[test]
    fn only_another_boot_without_a_clean_end_makes_a_folder_suspect() {
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

    /// The kernel may have dropped what it could not write.
    #[test]
    fn after_a_failed_sync_a_folder_is_suspect_under_every_boot() {
        let mut marks = Marks::default();
        begin(&mut marks, "a", true);
        marks.power = Some(PowerMark::sync_failed());
        for boot_id in ["a", "b"] {
            assert_eq!(marks.check(boot_id), Err(Unfit::Suspect));
        }
    }

    /// It is written at each start, for the last one may not be on disk yet.
    #[test]
    fn every_start_marks_the_folder_anew() {
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
        assert_eq!(marks.check("c"), Err(Unfit::Suspect), "it is another loss");
        marks.power = marks.power.map(PowerMark::started);
        assert!(!begin(&mut marks, "b", true).lost_writes_accepted);
    }

    /// The mark of what it acknowledged early stays what it was, and so does the suspicion.
    #[test]
    fn a_change_of_durability_forgets_nothing() {
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
    fn what_a_person_accepts_does_not_bring_back_a_history_that_was_given_up() {
        let mut marks = marked("a", true);
        marks.given_up = Some("entry 7 differs".to_owned());
        let refused = Err(Unfit::GivenUp("entry 7 differs".to_owned()));
        assert_eq!(marks.check("a"), refused);
        marks.power = Some(PowerMark::loss_accepted("a"));
        assert_eq!(marks.begin("a", true).map(|_| ()), refused);
    }
}
