//! Cuts the events of one watch into messages: whole revisions, and fragments of those that are
//! larger than a message.

use dengine_types::Revision;

use super::{EventBatch, WatchSpec};
use crate::{Event, Stamp};

/// Whether more of the revision follows in which a part of history ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Unknown, because the part was read for other watches too.
    MayFollow,
    /// More follows, and the part began with at most `message_bytes` of this watch.
    Follows,
}

/// The messages that are complete.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) messages: Vec<EventBatch>,
    /// Events of the revision in which the part ends, which wait for the rest of it.
    pub(super) open: Vec<Event>,
}

/// A revision is larger than one message, and must not be split.
#[derive(Debug)]
pub(super) struct TooLarge(pub(super) Revision);

/// Cuts `events`, all events before `end`. `split` is the revision of which a fragment was
/// delivered already.
pub(super) fn cut(
    spec: &WatchSpec,
    split: Option<Revision>,
    mut events: Vec<Event>,
    end: Stamp,
    rest: Rest,
) -> Result<Cut, TooLarge> {
    let whole = match end.sub {
        0 => events.len(),
        _ if rest == Rest::MayFollow && spec.is_one_key() => events.len(),
        _ => events.partition_point(|event| event.kv.mod_revision < end.revision),
    };
    let open = events.split_off(whole);
    let mut messages = Messages::new(spec, split);
    let mut events = events.into_iter().peekable();
    while let Some(first) = events.next() {
        let revision = first.kv.mod_revision;
        let mut whole = vec![first];
        while let Some(event) = events.next_if(|it| it.kv.mod_revision == revision) {
            whole.push(event);
        }
        messages.add(revision, whole)?;
    }
    let open = match rest {
        Rest::MayFollow => messages.fragments(open)?,
        Rest::Follows => messages.followed(open)?,
    };
    Ok(Cut {
        messages: messages.done,
        open,
    })
}

/// Messages while they are being filled.
struct Messages<'a> {
    spec: &'a WatchSpec,
    split: Option<Revision>,
    done: Vec<EventBatch>,
    /// Size of the last message, if more revisions may be added to it.
    bytes: usize,
}

impl<'a> Messages<'a> {
    fn new(spec: &'a WatchSpec, split: Option<Revision>) -> Self {
        Self {
            spec,
            split,
            done: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds all events of a revision, or its undelivered rest.
    fn add(&mut self, revision: Revision, events: Vec<Event>) -> Result<(), TooLarge> {
        let bytes = size_bytes(&events);
        if self.split == Some(revision) || bytes > self.spec.message_bytes && events.len() > 1 {
            let last = self.fragments(events)?;
            self.push(revision, last, false);
            // Nothing is added to the end of a revision that was split.
            self.bytes = self.spec.message_bytes;
            return Ok(());
        }
        match self.done.last_mut() {
            Some(last) if self.bytes + bytes <= self.spec.message_bytes => {
                last.events.extend(events);
                last.revision = revision;
                last.next = Stamp::end_of(revision);
                self.bytes += bytes;
            }
            _ => {
                self.push(revision, events, false);
                self.bytes = bytes;
            }
        }
        Ok(())
    }

    /// Cuts off the fragments of a revision that are certainly followed by more of it; the rest
    /// fits into one message, and is not empty if `events` is not.
    fn fragments(&mut self, mut events: Vec<Event>) -> Result<Vec<Event>, TooLarge> {
        let mut bytes = size_bytes(&events);
        while bytes > self.spec.message_bytes && events.len() > 1 {
            let rest = events.split_off(self.fitting(&events));
            bytes = size_bytes(&rest);
            self.push_fragment(events)?;
            events = rest;
        }
        Ok(events)
    }

    /// Events of a revision of which more follow. They are delivered only if the revision is known
    /// not to fit into a message, and otherwise returned, to be read again together with the rest.
    fn followed(&mut self, events: Vec<Event>) -> Result<Vec<Event>, TooLarge> {
        let Some(revision) = events.first().map(|event| event.kv.mod_revision) else {
            return Ok(events);
        };
        let large = size_bytes(&events) >= self.spec.message_bytes;
        if !self.done.is_empty() || self.split != Some(revision) && !large {
            return Ok(events);
        }
        let last = self.fragments(events)?;
        self.push_fragment(last)?;
        Ok(Vec::new())
    }

    /// How many events fit into one message, at least one.
    fn fitting(&self, events: &[Event]) -> usize {
        let mut bytes = 0;
        let over = events.iter().position(|event| {
            bytes += event.size_bytes();
            bytes > self.spec.message_bytes
        });
        over.unwrap_or(events.len()).max(1)
    }

    fn push_fragment(&mut self, events: Vec<Event>) -> Result<(), TooLarge> {
        let last = events.last().expect("a fragment holds something");
        let revision = last.kv.mod_revision;
        if !self.spec.fragment {
            return Err(TooLarge(revision));
        }
        self.push(revision, events, true);
        Ok(())
    }

    fn push(&mut self, revision: Revision, events: Vec<Event>, fragment: bool) {
        let next = match events.last() {
            Some(last) if fragment => last.stamp().next(),
            _ => Stamp::end_of(revision),
        };
        self.done.push(EventBatch {
            events,
            revision,
            fragment,
            next,
        });
    }
}

pub(super) fn size_bytes(events: &[Event]) -> usize {
    events.iter().map(Event::size_bytes).sum()
}
