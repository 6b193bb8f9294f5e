//! Limits the leases that one client may have, so that none takes all of the cluster.
//!
//! As with sessions ([`openers`](super::openers)), each member counts those that were asked for
//! through it, by address, and the leader counts what a member passes on for that member. A lease
//! counts from when it is asked for, under the id that it will have, whatever its client waits for.
//! Those that are over, or never came to be, are found out by a look at all that there are.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dengine_kv::LEASES_MAX;
use dengine_types::LeaseId;

use crate::connections::Share;
use crate::server::forward::Origin;

/// How long it is not looked again which leases are over.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a lease counts in any case: by then it is in this member's state if it ever is.
const SETTLED: Duration = Duration::from_secs(30);
/// With so many known, and twice as many as the last look left, it is looked in any case.
const KNOWN_MIN: usize = 10_000;

/// Which client asked for which leases through this member. Clones share it.
#[derive(Clone, Debug, Default)]
pub(in crate::server) struct Grants(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    leases: HashMap<LeaseId, Asked>,
    counts: HashMap<Client, usize>,
    /// How many the last look left.
    left: usize,
    looked: Option<Instant>,
    looking: bool,
}

/// A client, or a member that passes on what its clients ask for.
type Client = (IpAddr, Origin);

#[derive(Debug)]
struct Asked {
    by: Client,
    at: Instant,
}

/// The right to look which leases are over: one has it at a time. Given back when this is dropped.
#[derive(Debug)]
pub(in crate::server) struct Look(Grants);

/// The client has as many leases as it may.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::server) struct TooMany {
    pub(in crate::server) own: usize,
}

impl Grants {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a lease that `from` asks for, if it has fewer than it may. Whether it was not counted
    /// before, under the same id.
    pub(in crate::server) fn ask(
        &self,
        lease: LeaseId,
        from: IpAddr,
        origin: Origin,
    ) -> Result<bool, TooMany> {
        self.ask_at(Instant::now(), lease, (from, origin))
    }

    fn ask_at(&self, at: Instant, lease: LeaseId, by: Client) -> Result<bool, TooMany> {
        let mut known = self.lock();
        if known.leases.contains_key(&lease) {
            return Ok(false);
        }
        let own = known.counts.get(&by).copied().unwrap_or(0);
        let share = match by.1 {
            Origin::Client => Share::HALF,
            Origin::Member => Share::EIGHT_NINTHS,
        };
        let most = usize::try_from(LEASES_MAX).unwrap_or(usize::MAX);
        if share.more(most, known.leases.len(), own) == 0 {
            return Err(TooMany { own });
        }
        known.leases.insert(lease, Asked { by, at });
        *known.counts.entry(by).or_default() += 1;
        Ok(true)
    }

    /// It was certainly not granted.
    pub(in crate::server) fn forget(&self, lease: LeaseId) {
        let mut known = self.lock();
        if let Some(asked) = known.leases.remove(&lease) {
            known.forget_one(asked.by);
        }
    }

    /// Whether it is to be looked which leases are over: because one was refused, or many are
    /// known. That reads all of them, so it is done now and then, by one at a time, and not here.
    pub(in crate::server) fn look(&self, refused: bool) -> Option<Look> {
        let mut known = self.lock();
        let wanted = refused || known.leases.len() > KNOWN_MIN.max(2 * known.left);
        let recent = known.looked.is_some_and(|it| it.elapsed() < LOOK_EVERY);
        if !wanted || recent || known.looking {
            return None;
        }
        known.looking = true;
        Some(Look(self.clone()))
    }
}

impl Look {
    /// Forgets leases that are over, by those that this member's state holds.
    pub(in crate::server) fn seen(&self, held: &HashSet<LeaseId>) {
        self.0.lock().forget_others(held, Instant::now());
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let mut known = self.0.lock();
        known.looking = false;
        known.looked = Some(Instant::now());
    }
}

impl Known {
    fn forget_others(&mut self, held: &HashSet<LeaseId>, now: Instant) {
        let is_over = |id: &LeaseId, asked: &Asked| {
            now.saturating_duration_since(asked.at) > SETTLED && !held.contains(id)
        };
        let over = self.leases.extract_if(|id, asked| is_over(id, asked));
        let over: Vec<Asked> = over.map(|(_, asked)| asked).collect();
        for asked in over {
            self.forget_one(asked.by);
        }
        self.left = self.leases.len();
    }

    fn forget_one(&mut self, client: Client) {
        if let Some(count) = self.counts.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: i64 = LEASES_MAX as i64 / 2;

    fn client(last: u8) -> Client {
        (IpAddr::from([10, 0, 0, last]), Origin::Client)
    }

    /// Asks for leases from that id on; how many were let through.
    fn ask_all(grants: &Grants, begin: i64, by: Client) -> i64 {
        let now = Instant::now();
        let asked = (begin..).take_while(|id| grants.ask_at(now, LeaseId(*id), by).is_ok());
        asked.count() as i64
    }

    /// One client could have a million, and no other a single one.
    #[test]
    fn one_client_does_not_take_the_leases_of_all() {
        let grants = Grants::default();
        assert_eq!(ask_all(&grants, 1, client(1)), HALF);
        assert_eq!(ask_all(&grants, HALF + 1, client(2)), HALF / 2);
        let (from, origin) = client(3);
        assert_eq!(grants.ask(LeaseId(-1), from, origin), Ok(true));
        let one_more = grants.ask(LeaseId(-2), client(1).0, Origin::Client);
        assert!(one_more.is_err());
        // The same one is no more.
        let again = grants.ask(LeaseId(1), client(1).0, Origin::Client);
        assert_eq!(again, Ok(false));
    }

    /// Clients of a member that passes their calls on are many, and it may be a client that says
    /// that it is a member.
    #[test]
    fn a_member_may_have_more_and_still_not_all() {
        let grants = Grants::default();
        let member = (IpAddr::from([10, 0, 0, 1]), Origin::Member);
        let most = (8 * LEASES_MAX as i64 + 8) / 9;
        assert_eq!(ask_all(&grants, 1, member), most);
        let (from, origin) = client(2);
        assert_eq!(grants.ask(LeaseId(-1), from, origin), Ok(true));
    }

    #[test]
    fn what_is_over_or_was_not_granted_does_not_count() {
        let grants = Grants::default();
        let begun = Instant::now();
        for id in 1..=3 {
            grants.ask_at(begun, LeaseId(id), client(1)).unwrap();
        }
        grants.forget(LeaseId(3));
        let held = HashSet::from([LeaseId(1)]);
        // The second one may not have reached this member yet.
        grants.lock().forget_others(&held, begun + SETTLED);
        assert_eq!(grants.lock().counts[&client(1)], 2);
        let later = begun + SETTLED + Duration::from_secs(1);
        grants.lock().forget_others(&held, later);
        assert_eq!(grants.lock().counts[&client(1)], 1);
        grants.lock().forget_others(&HashSet::new(), later);
        let known = grants.lock();
        assert!(known.counts.is_empty() && known.leases.is_empty());
    }

    #[test]
    fn one_looks_at_a_time_now_and_then() {
        let grants = Grants::default();
        assert!(grants.look(false).is_none(), "few are known");
        let look = grants.look(true).unwrap();
        assert!(grants.look(true).is_none(), "one at a time");
        drop(look);
        assert!(grants.look(true).is_none(), "now and then");
    }
}
