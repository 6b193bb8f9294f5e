//! Limits the sessions that one client may open, so that none takes all 10,000 of the cluster.
//!
//! Each member counts those that were opened through it, by the address that they were asked for
//! from. It knows how many are open in all, for each is in its state. What it does not know is what
//! the same client has opened through other members, or through this one before it started: so a
//! client may have half of what no other has through one member, half of what is then left through
//! the next, and so on. All it can't have. What a member passes on to the leader counts there for
//! that member, which may have eight ninths, for it has counted its own clients already.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dengine_kv::SESSIONS_MAX;
use dengine_types::{Index, SessionId};

use crate::connections::Share;
use crate::server::forward::Origin;

/// How long it is not looked again which of the sessions have ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// With more than so many it is looked in any case.
const KNOWN_MAX: usize = 2 * SESSIONS_MAX as usize;

/// Which client opened which sessions through this member. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::server) struct Openers(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    sessions: HashMap<SessionId, Opener>,
    /// How many each has, those included that are being opened.
    counts: HashMap<Opener, usize>,
    /// How many are being opened.
    opening: usize,
    looked: Option<Instant>,
    looking: bool,
}

/// Which sessions this member's state held, and up to which entry: that was read before.
pub(in crate::server) struct OpenNow {
    pub(in crate::server) applied: Index,
    pub(in crate::server) sessions: BTreeSet<SessionId>,
}

/// The right to look which sessions have ended: one has it at a time. Given back when this is
/// dropped.
#[derive(Debug)]
pub(in crate::server) struct Look(Openers);

/// A client, or a member that passes on what its clients ask for.
type Opener = (IpAddr, Origin);

/// A session that is being opened. Counts until this is dropped, or as an open one.
#[derive(Debug)]
pub(in crate::server) struct Opening {
    openers: Openers,
    opener: Opener,
    opened: bool,
}

/// The client has as many sessions as it may.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::server) struct TooMany {
    pub(in crate::server) own: usize,
    pub(in crate::server) all: usize,
}

impl Openers {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more session of `from`, if of so many that are open it has fewer than it
    /// may, as far as is known.
    pub(in crate::server) fn open(
        &self,
        from: IpAddr,
        origin: Origin,
        in_all: u64,
    ) -> Result<Opening, TooMany> {
        let opener = (from, origin);
        let mut known = self.lock();
        let in_all = usize::try_from(in_all).unwrap_or(usize::MAX);
        let own = known.counts.get(&opener).copied().unwrap_or(0);
        let share = match origin {
            Origin::Client => Share::HALF,
            Origin::Member => Share::EIGHT_NINTHS,
        };
        let taken = in_all.saturating_add(known.opening).max(own);
        if share.more(SESSIONS_MAX as usize, taken, own) == 0 {
            return Err(TooMany { own, all: in_all });
        }
        *known.counts.entry(opener).or_default() += 1;
        known.opening += 1;
        Ok(Opening {
            openers: self.clone(),
            opener,
            opened: false,
        })
    }

    /// Whether it is to be looked which sessions have ended: because somebody was refused, or too
    /// many are known. That reads all of them, so it is done now and then, by one at a time, and
    /// not here.
    pub(in crate::server) fn look(&self, refused: bool) -> Option<Look> {
        let mut known = self.lock();
        let wanted = refused || known.sessions.len() > KNOWN_MAX;
        let recent = known.looked.is_some_and(|it| it.elapsed() < LOOK_EVERY);
        if !wanted || recent || known.looking {
            return None;
        }
        known.looking = true;
        Some(Look(self.clone()))
    }

    /// The client that has opened a session through this member, if it was one.
    pub(in crate::server) fn client_of(&self, session: SessionId) -> Option<IpAddr> {
        match self.lock().sessions.get(&session) {
            Some((address, Origin::Client)) => Some(*address),
            Some((_, Origin::Member)) | None => None,
        }
    }
}

impl Look {
    /// Forgets sessions that have ended. One that this member's state had not reached goes on.
    pub(in crate::server) fn seen(&self, now: &OpenNow) {
        self.0.lock().forget_ended(now);
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let mut known = self.0.lock();
        known.looking = false;
        known.looked = Some(Instant::now());
    }
}

/// What becomes of a place that was asked for before it was looked which sessions have ended, by
/// what the look came to. A client with one needs no look; one without asks once more behind it.
///
/// # Errors
/// The look failed, and there was no place.
pub(in crate::server) fn after_look<E>(
    found: Result<Opening, TooMany>,
    looked: Result<(), E>,
    again: impl FnOnce() -> Result<Result<Opening, TooMany>, E>,
) -> Result<Result<Opening, TooMany>, E> {
    match found {
        Ok(opening) => Ok(Ok(opening)),
        Err(_) => looked.and_then(|()| again()),
    }
}

impl Known {
    fn forget_ended(&mut self, now: &OpenNow) {
        let is_open = |id: &SessionId| Index(id.0) > now.applied || now.sessions.contains(id);
        let ended: Vec<_> = self.sessions.extract_if(|id, _| !is_open(id)).collect();
        for (_, opener) in ended {
            self.forget_one(opener);
        }
    }

    fn forget_one(&mut self, opener: Opener) {
        if let Some(count) = self.counts.get_mut(&opener) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&opener);
            }
        }
    }
}

impl Opening {
    /// It is open, under this name.
    pub(in crate::server) fn opened(mut self, session: SessionId) {
        self.opened = true;
        let mut known = self.openers.lock();
        // One that was asked for twice under one name is one.
        if let Some(before) = known.sessions.insert(session, self.opener) {
            known.forget_one(before);
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let mut known = self.openers.lock();
        known.opening -= 1;
        if !self.opened {
            known.forget_one(self.opener);
        }
    }
}

#[cfg(test)]
mod tests {
    use dengine_kv::store::MemoryStore;
    use dengine_kv::{Command, Outcome, Request, StateMachine};
    use dengine_types::{Entry, EntryKind, Term};

    use super::*;

    const HALF: usize = SESSIONS_MAX as usize / 2;

    struct Cluster {
        machine: StateMachine<MemoryStore>,
        openers: Openers,
        index: u64,
    }

    impl Cluster {
        fn new() -> Self {
            Self {
                machine: StateMachine::open(MemoryStore::default()).unwrap(),
                openers: Openers::default(),
                index: 0,
            }
        }

        fn apply(&mut self, command: Command) -> Outcome {
            self.index += 1;
            let entry = Entry {
                index: Index(self.index),
                term: Term(1),
                kind: EntryKind::Command,
                context: bytes::Bytes::new(),
                data: Request::from(command).encode(dengine_kv::CommandVersion::OLDEST),
            };
            self.machine.apply(&[entry]).unwrap().remove(0).outcome
        }

        fn open(&mut self, from: u8, origin: Origin) -> Option<SessionId> {
            let address = IpAddr::from([10, 0, 0, from]);
            let in_all = self.machine.reader().open_sessions();
            let opening = self.openers.open(address, origin, in_all).ok()?;
            match self.apply(Command::OpenSession { ttl_ms: 1 }) {
                Outcome::SessionOpened { session } => {
                    opening.opened(session);
                    Some(session)
                }
                other => panic!("{other:?}"),
            }
        }

        /// Looks which have ended, as if it had not been for long.
        fn look(&self) {
            self.openers.lock().looked = None;
            let look = self.openers.look(true).expect("nobody else looks");
            assert!(self.openers.look(true).is_none(), "one at a time");
            let reader = self.machine.reader();
            look.seen(&OpenNow {
                applied: reader.applied_index(),
                sessions: reader.session_ids().unwrap(),
            });
            drop(look);
            assert!(self.openers.look(true).is_none(), "now and then");
        }

        fn open_all(&mut self, from: u8, origin: Origin) -> Vec<SessionId> {
            std::iter::from_fn(|| self.open(from, origin)).collect()
        }
    }

    #[test]
    fn one_client_does_not_take_the_sessions_of_all() {
        let mut cluster = Cluster::new();
        let mut greedy = cluster.open_all(1, Origin::Client);
        assert_eq!(greedy.len(), HALF);
        assert_eq!(cluster.open_all(2, Origin::Client).len(), HALF / 2);
        assert!(cluster.open(3, Origin::Client).is_some());
        assert!(cluster.open(1, Origin::Client).is_none());
        // What has ended without this member's doing is found out at the next look.
        let ended = greedy.pop().unwrap();
        let left = Command::CloseSession { session: ended };
        cluster.apply(left);
        cluster.look();
        assert!(
            cluster.open(1, Origin::Client).is_none(),
            "others have more now"
        );
        for session in greedy.split_off(HALF / 4) {
            cluster.apply(Command::CloseSession { session });
        }
        cluster.look();
        assert!(cluster.open(1, Origin::Client).is_some());
        assert_eq!(cluster.openers.client_of(ended), None);
        let address = cluster.openers.client_of(greedy[0]).unwrap();
        assert_eq!(address, IpAddr::from([10, 0, 0, 1]));
    }

    /// Clients of a member that passes their calls on are many, and it may be a client that says
    /// that it is a member.
    #[test]
    fn a_member_may_have_more_and_still_not_all() {
        let mut cluster = Cluster::new();
        let passed_on = cluster.open_all(1, Origin::Member);
        assert_eq!(passed_on.len(), (8 * SESSIONS_MAX as usize).div_ceil(9));
        assert!(cluster.open(2, Origin::Client).is_some());
        assert_eq!(cluster.openers.client_of(passed_on[0]), None);
    }

    /// It was refused for want of a turn among the long reads, whatever the place that was found
    /// for it.
    #[test]
    fn a_session_with_a_place_is_opened_though_nobody_could_look_which_have_ended() {
        let openers = Openers::default();
        let open = || openers.open(IpAddr::from([10, 0, 0, 1]), Origin::Client, 0);
        let refused = || Err(TooMany { own: 1, all: 1 });
        let found = after_look(open(), Err("no turn"), || panic!("it has a place"));
        assert!(matches!(found, Ok(Ok(_))));
        let found = after_look(refused(), Err("no turn"), || panic!("nobody looked"));
        assert!(matches!(found, Err("no turn")));
        let found = after_look(refused(), Ok::<_, &str>(()), || Ok(open()));
        assert!(matches!(found, Ok(Ok(_))));
    }

    #[test]
    fn what_was_not_opened_or_was_closed_does_not_count() {
        let mut cluster = Cluster::new();
        let session = cluster.open(1, Origin::Client).unwrap();
        let address = IpAddr::from([10, 0, 0, 1]);
        let opening = cluster.openers.open(address, Origin::Client, 1);
        assert_eq!(cluster.openers.lock().counts[&(address, Origin::Client)], 2);
        drop(opening);
        cluster.apply(Command::CloseSession { session });
        cluster.look();
        let known = cluster.openers.lock();
        assert!(known.counts.is_empty() && known.sessions.is_empty() && known.opening == 0);
    }
}
