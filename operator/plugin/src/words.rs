//! What conditions say, told whenever it changes. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// An operator that runs sees a change at once, and one that takes over within a lease. If nobody
/// did for so long, nobody will.
pub(crate) const UNSEEN_MAX: Duration = Duration::from_secs(60);

/// What each condition said last.
#[derive(Debug, Default)]
pub(crate) struct Words(BTreeMap<String, String>);

impl Words {
    /// The words of these conditions, whatever their status, as far as they were not told yet, by
    /// whichever of them.
    pub(crate) fn news<'a>(
        &mut self,
        conditions: impl IntoIterator<Item = &'a Condition>,
    ) -> Vec<String> {
        let mut news = Vec::new();
        for condition in conditions {
            let words = &condition.message;
            let is_told = words.is_empty() || self.0.values().any(|told| told == words);
            self.0.insert(condition.type_.clone(), words.clone());
            if !is_told {
                news.push(words.clone());
            }
        }
        news
    }
}

/// The condition of this type.
pub(crate) fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// The condition of this type, if it holds.
pub(crate) fn holds<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    condition(conditions, type_).filter(|condition| condition.status == "True")
}

/// Why nothing happens to what nobody has seen for so long. `others` is what an operator says that
/// leaves the cluster alone; while another one looks after it, that is no reason to end.
pub(crate) fn unseen(others: Option<&Condition>) -> String {
    let seconds = UNSEEN_MAX.as_secs();
    match others {
        Some(condition) => format!(
            "it has not been reconciled for {seconds} s; {}",
            condition.message
        ),
        None => format!(
            "no operator has reconciled it for {seconds} s; is an operator running that watches \
             this namespace?"
        ),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn said(type_: &str, status: &str, message: &str) -> Condition {
        let condition = json!({
            "type": type_, "status": status, "reason": "R", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(condition).unwrap()
    }

    #[test]
    fn words_are_told_once_and_again_when_they_change() {
        let mut words = Words::default();
        let news =
            |words: &mut Words, message: &str| words.news(&[said("Progressing", "False", message)]);
        assert_eq!(news(&mut words, "blocked"), ["blocked"]);
        assert!(news(&mut words, "blocked").is_empty());
        assert_eq!(news(&mut words, "going on"), ["going on"]);
        assert!(news(&mut words, "").is_empty(), "nothing is said");
        assert_eq!(news(&mut words, "blocked"), ["blocked"]);
        let other = [said("Failed", "True", "blocked")];
        assert!(words.news(&other).is_empty(), "the other one says it");
    }
}
