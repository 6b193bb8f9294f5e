//! What one watch stream has said, and whether it may say so.
//!
//! Some promises can't be compared, for how events are spread over messages is each side's matter:
//! they are demanded of each side alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::pb;

/// The id under which progress is said of all watches of a stream.
const ALL_WATCHES: i64 = -1;

/// What a watch of a stream was sent, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Entry {
    Event(pb::Event),
    /// Not at the client's request.
    Ended {
        compact_revision: i64,
        cancel_reason: String,
    },
}

/// One stream from its beginning on.
#[derive(Debug, Default)]
pub(crate) struct StreamLog {
    /// By watch; what is compared. Emptied whenever both sides were found equal.
    pub(crate) sent: BTreeMap<i64, Vec<Entry>>,
    /// Code and text of the end, if it came.
    pub(crate) ended: Option<(tonic::Code, String)>,
    /// Answers to requests, for those who wait for them.
    pub(crate) answers: VecDeque<pb::WatchResponse>,
    /// How often progress was said of the whole stream.
    pub(crate) progress: u64,
    /// Promises that were broken.
    pub(crate) broken: Vec<String>,
    live: BTreeMap<i64, Live>,
    cancelling: BTreeSet<i64>,
    /// Watches that a compaction ended. etcd keeps them until they are cancelled as well.
    compacted: BTreeSet<i64>,
    /// Whether a watch of the past may still be sent what has happened before it was asked for.
    behind: bool,
    /// The watch whose last message has a further part.
    fragment_of: Option<i64>,
}

#[derive(Debug, Default)]
struct Live {
    start: i64,
    /// Every event up to this revision was sent.
    complete_to: i64,
    newest: i64,
}

impl StreamLog {
    /// A message came.
    pub(crate) fn take(&mut self, response: pb::WatchResponse) {
        self.check_fragments(&response);
        let id = response.watch_id;
        let revision = response.header.as_ref().map_or(0, |it| it.revision);
        if response.created {
            if !response.canceled {
                self.live.insert(id, Live::default());
                self.compacted.remove(&id);
            }
            self.answers.push_back(response);
            return;
        }
        let progress = response.events.is_empty() && !response.canceled;
        if progress {
            self.take_progress(id, revision);
        }
        for event in response.events.iter().cloned() {
            self.take_event(id, revision, event);
        }
        if response.canceled {
            self.take_end(response);
        }
    }

    fn check_fragments(&mut self, response: &pb::WatchResponse) {
        let id = response.watch_id;
        if let Some(of) = self.fragment_of.take_if(|of| *of != id) {
            self.broken
                .push(format!("a message of watch {id} between fragments of {of}"));
        }
        self.fragment_of = response.fragment.then_some(id);
    }

    fn take_progress(&mut self, id: i64, revision: i64) {
        // Of all, or of one that asked to be sent it from time to time.
        let of_all = id == ALL_WATCHES || !self.live.contains_key(&id);
        self.progress += u64::from(of_all);
        for (watch, live) in &mut self.live {
            if !of_all && *watch != id {
                continue;
            }
            if live.newest > revision {
                let newest = live.newest;
                self.broken.push(format!(
                    "progress {revision} after an event of {newest} of watch {watch}"
                ));
            }
            live.complete_to = live.complete_to.max(revision);
        }
    }

    fn take_event(&mut self, id: i64, header: i64, event: pb::Event) {
        let revision = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        match self.live.get_mut(&id) {
            None => self
                .broken
                .push(format!("an event for watch {id}, which has ended")),
            Some(live) if revision <= live.complete_to => self.broken.push(format!(
                "an event of {revision} for watch {id} after progress {}",
                live.complete_to
            )),
            Some(live) => live.newest = revision,
        }
        if header < revision {
            self.broken
                .push(format!("an event of {revision} under a head of {header}"));
        }
        self.sent.entry(id).or_default().push(Entry::Event(event));
    }

    fn take_end(&mut self, response: pb::WatchResponse) {
        let id = response.watch_id;
        let compacted = response.compact_revision != 0;
        if self.live.remove(&id).is_none() {
            let again = !compacted && self.compacted.remove(&id);
            if !again {
                self.broken.push(format!("watch {id} ended twice"));
            }
            return;
        }
        if compacted {
            self.compacted.insert(id);
        }
        if self.cancelling.remove(&id) {
            self.answers.push_back(response);
            return;
        }
        self.sent.entry(id).or_default().push(Entry::Ended {
            compact_revision: response.compact_revision,
            cancel_reason: response.cancel_reason,
        });
    }

    /// The watch of this answer begins here, if it does; 0 or less: with the next revision. One
    /// that does not is answered under [`ALL_WATCHES`], which another may have as its own id.
    pub(crate) fn begins(&mut self, answer: &pb::WatchResponse, start: i64) {
        let now = answer.header.as_ref().map_or(0, |it| it.revision);
        if let Some(live) = self.live.get_mut(&answer.watch_id)
            && !answer.canceled
        {
            live.start = start;
            self.behind |= (1..=now).contains(&start);
        }
    }

    /// Every watch was sent what has happened.
    pub(crate) fn caught_up(&mut self) {
        self.behind = false;
    }

    pub(crate) fn is_behind(&self) -> bool {
        self.behind
    }

    /// Whether an answer will come.
    pub(crate) fn cancel(&mut self, id: i64) -> bool {
        let live = self.live.contains_key(&id);
        if live {
            self.cancelling.insert(id);
        }
        live
    }

    /// Whether a compaction ended this watch, and nothing cancelled it.
    pub(crate) fn keeps(&self, id: i64) -> bool {
        self.compacted.contains(&id)
    }

    pub(crate) fn has_watches(&self) -> bool {
        !self.live.is_empty()
    }

    /// Whether etcd is silent when it is asked for progress at this revision: a watch begins later,
    /// or one was ended by a compaction and not cancelled.
    pub(crate) fn cannot_tell(&self, revision: i64) -> bool {
        let future = |live: &Live| live.start > revision;
        !self.compacted.is_empty() || self.live.values().any(future)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: i64, header: i64, events: &[i64]) -> pb::WatchResponse {
        let events = events.iter().map(|revision| pb::Event {
            kv: Some(pb::KeyValue {
                mod_revision: *revision,
                ..Default::default()
            }),
            ..Default::default()
        });
        pb::WatchResponse {
            header: Some(pb::ResponseHeader {
                revision: header,
                ..Default::default()
            }),
            watch_id: id,
            events: events.collect(),
            ..Default::default()
        }
    }

    fn created(id: i64) -> pb::WatchResponse {
        pb::WatchResponse {
            created: true,
            ..message(id, 1, &[])
        }
    }

    fn canceled(id: i64) -> pb::WatchResponse {
        pb::WatchResponse {
            canceled: true,
            ..message(id, 1, &[])
        }
    }

    fn part(id: i64, revision: i64) -> pb::WatchResponse {
        pb::WatchResponse {
            fragment: true,
            ..message(id, revision, &[revision])
        }
    }

    fn broken(messages: Vec<pb::WatchResponse>) -> String {
        let mut log = StreamLog::default();
        messages.into_iter().for_each(|message| log.take(message));
        log.broken.join("; ")
    }

    #[test]
    fn a_stream_that_keeps_its_promises_breaks_none() {
        let messages = vec![
            created(0),
            created(1),
            message(0, 3, &[2, 3]),
            part(1, 2),
            message(1, 3, &[2]),
            message(-1, 3, &[]),
            message(0, 9, &[4]),
            canceled(0),
        ];
        assert_eq!(broken(messages), "");
    }

    #[test]
    fn each_broken_promise_is_named() {
        let cases = [
            (vec![message(0, 2, &[2])], "which has ended"),
            (vec![created(0), message(0, 2, &[3])], "under a head of 2"),
            (
                vec![created(0), message(-1, 4, &[]), message(0, 4, &[4])],
                "after progress 4",
            ),
            (
                vec![created(0), message(0, 5, &[5]), message(-1, 4, &[])],
                "progress 4 after an event of 5",
            ),
            (
                vec![created(0), created(1), part(0, 2), message(1, 2, &[2])],
                "between fragments",
            ),
            (vec![created(0), canceled(0), canceled(0)], "ended twice"),
        ];
        for (messages, what) in cases {
            let said = broken(messages);
            assert!(said.contains(what), "{said}");
        }
    }

    #[test]
    fn an_end_that_was_asked_for_is_an_answer_and_another_is_compared() {
        let mut log = StreamLog::default();
        for id in [0, 1] {
            log.take(created(id));
        }
        log.answers.clear();
        assert!(log.cancel(0) && !log.cancel(5));
        log.take(canceled(0));
        log.take(canceled(1));
        assert_eq!(log.answers.len(), 1);
        assert_eq!(log.sent.keys().collect::<Vec<_>>(), [&1]);
        assert!(!log.has_watches());
    }

    /// It was believed to have begun, and each look at its stream waited for progress in vain.
    #[test]
    fn a_refused_watch_has_not_the_start_of_the_one_that_is_numbered_like_the_answer() {
        let mut log = StreamLog::default();
        log.take(created(ALL_WATCHES));
        log.begins(&created(ALL_WATCHES), 9);
        assert!(log.cannot_tell(1));
        let refused = pb::WatchResponse {
            canceled: true,
            ..created(ALL_WATCHES)
        };
        log.take(refused.clone());
        log.begins(&refused, 0);
        assert!(log.cannot_tell(1));
    }

    #[test]
    fn what_a_compaction_ended_may_be_cancelled_too() {
        let mut log = StreamLog::default();
        log.take(created(0));
        assert!(!log.cannot_tell(1));
        log.take(pb::WatchResponse {
            compact_revision: 7,
            ..canceled(0)
        });
        assert!(log.cannot_tell(1) && log.keeps(0) && !log.cancel(0));
        log.take(canceled(0));
        assert!(!log.cannot_tell(1) && !log.keeps(0));
        assert_eq!((log.sent[&0].len(), log.broken.len()), (1, 0));
    }
}
