//! Sets conditions so that their transition time changes only with their status. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The Kubernetes API limits a condition's message; ours stay far below.
const MESSAGE_CHARS_MAX: usize = 1024;

/// Status, reason and message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConditionState {
    /// `None`: unknown.
    holds: Option<bool>,
    reason: &'static str,
    message: String,
}

impl ConditionState {
    pub(crate) fn yes(reason: &'static str, message: &str) -> Self {
        Self {
            holds: Some(true),
            reason,
            message: shortened(message),
        }
    }

    pub(crate) fn no(reason: &'static str, message: &str) -> Self {
        Self {
            holds: Some(false),
            reason,
            message: shortened(message),
        }
    }

    pub(crate) fn unknown(reason: &'static str, message: &str) -> Self {
        Self {
            holds: None,
            reason,
            message: shortened(message),
        }
    }
}

/// Conditions under construction, based on the previous ones.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    list: Vec<Condition>,
    generation: Option<i64>,
    now: Time,
}

impl Conditions {
    pub(crate) fn new(previous: &[Condition], generation: Option<i64>, now: Time) -> Self {
        Self {
            list: previous.to_vec(),
            generation,
            now,
        }
    }

    pub(crate) fn set(&mut self, type_: &str, state: ConditionState) {
        let status = match state.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let before = self.get(type_);
        let since = before
            .filter(|condition| condition.status == status)
            .map_or_else(
                || self.now.clone(),
                |condition| condition.last_transition_time.clone(),
            );
        let condition = Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: state.reason.to_owned(),
            message: state.message,
            observed_generation: self.generation,
            last_transition_time: since,
        };
        match self
            .list
            .iter_mut()
            .find(|condition| condition.type_ == type_)
        {
            Some(place) => *place = condition,
            None => self.list.push(condition),
        }
    }

    /// Removes every other condition: an operator of another version may have set it.
    pub(crate) fn keep_only(&mut self, types: &[&str]) {
        self.list
            .retain(|condition| types.contains(&condition.type_.as_str()));
    }

    pub(crate) fn get(&self, type_: &str) -> Option<&Condition> {
        self.list.iter().find(|condition| condition.type_ == type_)
    }

    pub(crate) fn is_true(&self, type_: &str) -> bool {
        is_true(&self.list, type_)
    }

    /// The conditions, in the order in which they were first set.
    pub(crate) fn into_vec(self) -> Vec<Condition> {
        self.list
    }
}

/// Whether a condition in this list holds.
pub(crate) fn is_true(list: &[Condition], type_: &str) -> bool {
    list.iter()
        .any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Whether the condition of this type shows the message: with more before or after it, or cut
/// short.
pub(crate) fn shows(list: &[Condition], type_: &str, message: &str) -> bool {
    let of_type = list.iter().filter(|condition| condition.type_ == type_);
    let mut shown = of_type.map(|condition| condition.message.as_str());
    shown.any(|shown| shown.contains(message) || (!shown.is_empty() && message.starts_with(shown)))
}

fn shortened(message: &str) -> String {
    message.chars().take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn conditions_that_are_no_longer_set_are_removed() {
        let mut conditions = Conditions::new(&[], Some(1), at(10));
        conditions.set(
            "Ready",
            ConditionState::unknown("NotKnown", "nobody answers"),
        );
        conditions.set("OfAnotherVersion", ConditionState::yes("Sure", "it is"));
        conditions.keep_only(&["Ready"]);
        let list = conditions.into_vec();
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].status, "Unknown");
    }

    #[test]
    fn a_message_is_shown_with_more_around_it_or_cut_short() {
        let condition = |type_: &str, message: &str| Condition {
            type_: type_.to_owned(),
            status: "False".to_owned(),
            reason: "StepFailed".to_owned(),
            message: message.to_owned(),
            observed_generation: None,
            last_transition_time: at(1),
        };
        for (shown, expected) in [
            ("no space", true),
            ("try 3: no space", true),
            ("no space; another failure", true),
            ("no sp", true),
            ("", false),
            ("no permission", false),
        ] {
            let list = [condition("Ready", "no space"), condition("Failed", shown)];
            assert_eq!(shows(&list, "Failed", "no space"), expected, "{shown}");
        }
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut conditions = Conditions::new(&[], Some(1), at(10));
        conditions.set("Ready", ConditionState::no("Starting", "one of three"));
        let mut conditions = Conditions::new(&conditions.into_vec(), Some(1), at(20));
        conditions.set("Ready", ConditionState::no("Starting", "two of three"));
        let list = conditions.into_vec();
        assert_eq!(list[0].last_transition_time, at(10));
        assert_eq!(list[0].message, "two of three");

        let mut conditions = Conditions::new(&list, Some(2), at(30));
        conditions.set(
            "Ready",
            ConditionState::yes("AsSpecified", "three of three"),
        );
        let list = conditions.into_vec();
        assert_eq!(list[0].last_transition_time, at(30));
        assert_eq!(list[0].observed_generation, Some(2));
        assert_eq!(list.len(), 1);
    }
}
