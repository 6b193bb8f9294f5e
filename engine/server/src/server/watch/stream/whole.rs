//! Revisions that are sent whole: one watch at a time has the parts of one, until its rest is read.

use dengine_kv::watch::EventBatch;

use super::StreamTask;
use crate::server::turns;
use crate::server::watch::backlog::Bound;
use crate::server::watch::dialect::{Dialect, End};
use crate::server::watch::parts::{Parts, Rest, memory_bytes};

impl<D: Dialect> StreamTask<D> {
    /// Sends what can be, now that a part of history is read: nothing while more of its revision
    /// follows, and then all of that. A client gets nothing else in between.
    pub(super) async fn send_whole(
        &mut self,
        ids: &[u64],
        part: EventBatch,
        rest: Rest,
    ) -> Result<(), End> {
        // Who was set aside begins that revision again.
        let is_there = |id: &u64| self.active.contains_key(id) && !self.aside.contains_key(id);
        let ids: Vec<_> = ids.iter().copied().filter(is_there).collect();
        if ids.is_empty() {
            return Ok(());
        }
        if part.fragment || ids.iter().any(|id| self.has_parts(*id)) {
            for id in ids {
                self.send_part(id, part.clone(), rest).await?;
            }
            return Ok(());
        }
        for id in &ids {
            if let Some(active) = self.active.get_mut(id) {
                active.amid = false;
            }
        }
        self.send_events(&ids, part).await
    }

    /// The same for one watch, of a revision that is read in parts.
    async fn send_part(&mut self, id: u64, part: EventBatch, rest: Rest) -> Result<(), End> {
        let Some(active) = self.active.get_mut(&id) else {
            return Ok(());
        };
        active.amid = part.fragment;
        let rest_follows_at_once = active.in_parts && rest == Rest::IsNext;
        if part.fragment && !rest_follows_at_once {
            return self.hold(id, part, rest).await;
        }
        let held_some = !active.parts.is_empty();
        let whole = match active.in_parts {
            true => active.parts.followed_by(part),
            false => active.parts.joined_with(part),
        };
        if held_some {
            // What waits for the client counts in another way.
            self.whole_turn = None;
        }
        for message in whole {
            self.send_events(&[id], message).await?;
        }
        Ok(())
    }

    /// Holds a part of a revision until the rest is read. Of the watches that get theirs together
    /// with others only one at a time has any.
    async fn hold(&mut self, id: u64, part: EventBatch, rest: Rest) -> Result<(), End> {
        // Who is set aside begins again behind what it is told.
        self.hand_over().await?;
        let others_hold = self.others_have_parts(id);
        if others_hold && rest == Rest::MayWait {
            self.set_aside(id);
            return Ok(());
        }
        let bytes = memory_bytes(&part);
        let within = match (&self.whole_turn, rest) {
            (None, Rest::MayWait) => self.backlog.part_of_revision(bytes, Bound::OfMember),
            (Some(_), _) | (None, Rest::IsNext) => None,
        };
        let held = match within {
            Some(held) => Some(held),
            None => {
                if self.whole_turn.is_none() {
                    self.whole_turn = Some(self.turn_for_whole().await?);
                }
                self.backlog.part_of_revision(bytes, Bound::OfStream)
            }
        };
        match (held, self.active.get_mut(&id)) {
            (Some(held), Some(active)) => active.parts.push(part, held),
            (Some(_), None) => {}
            (None, _) if others_hold => self.set_aside(id),
            (None, _) => return Err(End::TooLarge),
        }
        Ok(())
    }

    /// One stream of the member at a time, so that all of them hold little more than their bound.
    async fn turn_for_whole(&self) -> Result<turns::Turn, End> {
        let turn = async {
            loop {
                // Who waits for clients keeps no turn from others.
                self.backlog.few_unread().await;
                let turn = self.shared.whole_turns.take(self.whose).await;
                if self.backlog.has_few_unread() {
                    return turn;
                }
            }
        };
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => Err(End::Stopping),
            () = self.backlog.given_up() => Err(End::InTheWay),
            turn = turn => Ok(turn),
        }
    }

    /// Has a watch begin its revision again once no other has parts of one. Its client has got
    /// nothing of it.
    pub(super) fn set_aside(&mut self, id: u64) {
        let spec = self.watches.spec(id).cloned();
        let resume = self.watches.remove(id, &mut self.shared.hub.wanted());
        if let Some(active) = self.active.get_mut(&id) {
            active.parts = Parts::default();
            active.amid = false;
        }
        if let (Some(spec), Some(resume)) = (spec, resume) {
            self.aside.insert(id, (spec, resume));
        }
    }

    pub(super) fn has_parts(&self, id: u64) -> bool {
        let active = self.active.get(&id);
        active.is_some_and(|it| !it.parts.is_empty())
    }

    fn others_have_parts(&self, id: u64) -> bool {
        let mut all = self.active.iter();
        all.any(|(other, it)| *other != id && !it.parts.is_empty())
    }

    /// Once no watch holds parts of a revision, others may.
    pub(super) fn take_back(&mut self) {
        if self.aside.is_empty() && self.whole_turn.is_none()
            || self.active.values().any(|it| !it.parts.is_empty())
        {
            return;
        }
        self.whole_turn = None;
        let mut wanted = self.shared.hub.wanted();
        for (id, (spec, first)) in std::mem::take(&mut self.aside) {
            self.watches.insert(id, spec, first, &mut wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use dengine_kv::watch::{WatchSet, WatchSpec};
    use dengine_kv::{KeyRange, Stamp};
    use dengine_protocol::v1::WatchResponse;
    use dengine_types::Revision;
    use futures::StreamExt as _;
    use tokio::runtime::Handle;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::connections::{Connection, Source};
    use crate::node::testing;
    use crate::server::watch::dialect::Create;
    use crate::server::watch::native::Native;
    use crate::server::watch::stream::outbox::{self, Outbox, Queue};
    use crate::server::watch::{OPEN_BYTES, WatchService, WatchShared};

    async fn with_watches(
        shared: &Arc<WatchShared>,
        ids: [u64; 2],
    ) -> (StreamTask<Native>, Queue<WatchResponse>) {
        let source = Arc::new(Source::new([10, 0, 0, 1].into()));
        let listener = shared.hub.listen();
        let (outbox, queued) = Outbox::new();
        let mut task = StreamTask {
            dialect: Native,
            shared: Arc::clone(shared),
            whose: None,
            connection: None,
            watches: WatchSet::new(listener.stream(), OPEN_BYTES),
            listener,
            active: BTreeMap::new(),
            aside: BTreeMap::new(),
            whole_turn: None,
            outbox,
            reached: Vec::new(),
            backlog: shared.backlogs.begin(&Arc::new(Connection::of(source))),
            progress_wanted: false,
            asks_no_more: false,
            cut_off_since: None,
            was_removed: false,
        };
        for id in ids {
            let spec = WatchSpec {
                keys: KeyRange::from_wire(b"a", &[0]),
                prev_kv: false,
                no_put: false,
                no_delete: false,
                fragment: true,
                shared: false,
                message_bytes: 1,
            };
            let create = Create {
                id: Some(id),
                cluster_id: 0,
                start: Revision(1),
                progress_notify: false,
                in_parts: false,
                spec: Ok(spec),
            };
            assert!(task.create(create).await.is_ok());
        }
        (task, queued)
    }

    fn part(fragment: bool) -> EventBatch {
        EventBatch {
            events: Vec::new(),
            revision: Revision(1),
            fragment,
            next: Stamp::start_of(Revision(1)),
        }
    }

    /// A thousand watches of a stream held the same large revision at once.
    #[tokio::test(flavor = "multi_thread")]
    async fn one_watch_of_a_stream_has_parts_and_others_begin_their_revision_again() {
        one_has_parts(&[&[1], &[2]]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_watches_that_are_told_together_one_has_parts_too() {
        one_has_parts(&[&[1, 2]]).await;
    }

    /// The watches 1 and 2 get a part of a revision, those of each group together.
    async fn one_has_parts(groups: &[&[u64]]) {
        let dir = tempfile::tempdir().unwrap();
        let node = testing::leading(dir.path()).await;
        let (limits, stop) = (node.config().limits.clone(), CancellationToken::new());
        let history = Handle::current();
        let service = WatchService::new(node.clone(), limits, &history, stop.clone());
        let (mut task, queued) = with_watches(&service.shared, [1, 2]).await;
        for ids in groups {
            let reached = ids.iter().map(|id| (*id, part(true).reached()));
            task.reached.extend(reached);
            let held = task.send_whole(ids, part(true), Rest::MayWait).await;
            assert!(held.is_ok());
        }
        task.take_back();
        assert!(task.has_parts(1) && !task.has_parts(2) && !task.watches.contains(2));
        // What it gets of the same page is of no use any more.
        assert!(
            task.send_whole(&[2], part(false), Rest::MayWait)
                .await
                .is_ok()
        );
        assert_eq!(task.outbox.len(), 0);
        assert!(
            task.send_whole(&[1], part(false), Rest::MayWait)
                .await
                .is_ok()
        );
        assert_eq!(task.outbox.len(), 1);
        task.take_back();
        assert_eq!(task.watches.next(2), Some(Revision(1)));
        assert!(task.hand_over().await.is_ok());
        drop(task);
        let told: Vec<_> = outbox::each(queued).collect().await;
        assert_eq!(told.len(), 3, "both began, and one has all of it");
        stop.cancel();
        node.shutdown().await.unwrap();
    }
}
