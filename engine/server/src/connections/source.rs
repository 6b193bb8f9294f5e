//! Where connections come from, and what one such place may have of what all share.
//!
//! Without names that are proven, an address is all by which one client is told from another.
//! Clients behind one address (a proxy, network address translation) count as one, and one with
//! many addresses as many. What IPv6 gives to one network (a /64, RFC 4291 section 2.5.4), and so
//! to anybody, counts as one address. It is one source on all ports that are served by the same
//! threads: else who came by three had three shares.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::heavy::WorkElsewhere;
use super::lanes::Lanes;
use super::turn::{Home, Homes, Threads};
use super::{Connections, Inner, lock};
use crate::nicer::Nicer;
use crate::single_thread::SingleThread;

/// The address by which a client is told from others.
pub(crate) fn one_client(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(from) => {
            let network = from.to_bits() & (u128::MAX << 64);
            Ipv6Addr::from_bits(network).into()
        }
        v4 => v4,
    }
}

/// Those from where anything comes, by whichever port, that is done by the same threads. Clones
/// share them.
#[derive(Clone, Default)]
pub(crate) struct Sources(Arc<Known>);

#[derive(Default)]
struct Known {
    by_address: Mutex<HashMap<IpAddr, Weak<Source>>>,
    /// By which they come, those of probes included.
    ports: Arc<Mutex<Ports>>,
    /// What all of them share.
    threads: Threads,
}

/// All ports by which somebody comes.
#[derive(Default)]
struct Ports {
    all: Vec<Weak<Inner>>,
    /// How many bytes are held for an address, by whoever counts them.
    holders: Vec<Box<dyn Fn(IpAddr) -> usize + Send + Sync>>,
    /// When connections were last closed because memory is short.
    shed_at: Option<Instant>,
}

/// Within this time what was closed has given back what it held, or never will.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(1);
/// What a connection may hold that is counted nowhere else, and a request that is being served.
const CONNECTION_BYTES: usize = 64 << 10;
const REQUEST_BYTES: usize = 16 << 10;
/// What waits for places or for its turn is counted in these: permits are 32-bit numbers.
pub(crate) const WAITING_UNIT_BYTES: usize = 1024;

/// In the present second and the one before. The load of an ordinary client is a tenth of it.
const MUCH_BYTES: usize = 2 << 20;

/// Bytes of the present second and of the one before.
#[derive(Default)]
struct Lately(Mutex<(u64, [usize; 2])>);

impl Lately {
    fn add(&self, second: u64, bytes: usize) {
        let mut counted = lock(&self.0);
        let (of, [now, before]) = *counted;
        *counted = match second - of.min(second) {
            0 => (of, [now + bytes, before]),
            1 => (second, [bytes, now]),
            _ => (second, [bytes, 0]),
        };
    }

    fn of_late(&self, second: u64) -> usize {
        let (of, [now, before]) = *lock(&self.0);
        match second - of.min(second) {
            0 => now + before,
            1 => now,
            _ => 0,
        }
    }
}

/// One address, and what its connections have.
pub(crate) struct Source {
    address: IpAddr,
    /// Where it is forgotten when it ends.
    known: Weak<Known>,
    /// What has arrived from there.
    sent: Lately,
    since: Instant,
    /// Calls that are open, until all of their answers are sent.
    pub(crate) calls: AtomicUsize,
    /// Requests that are being served.
    pub(crate) requests: AtomicUsize,
    /// Those of them that are writes.
    pub(crate) writes: AtomicUsize,
    /// What waits for places or for its turn, in [`WAITING_UNIT_BYTES`].
    pub(crate) waiting: AtomicUsize,
    /// Session reads that wait for this member to catch up.
    pub(crate) session_reads: AtomicUsize,
    /// Where its connections are served.
    homes: Arc<Homes>,
    lanes: Lanes,
}

impl Sources {
    /// Those whom these threads serve, and `nicer` for as long as they are heavy
    /// ([`threads_for_heavy`](super::threads_for_heavy)).
    pub(crate) fn start(usual: &[SingleThread], nicer: &Nicer) -> Self {
        let usual = usual.iter().map(|it| it.handle().clone());
        Self(Arc::new(Known {
            threads: Threads::of(usual, nicer),
            ..Known::default()
        }))
    }

    /// The same addresses on a port for probes, which the runtime serves in which they come in: a
    /// probe waits neither behind a busy client nor for a disk.
    pub(crate) fn for_probes(&self) -> Self {
        Self(Arc::new(Known {
            ports: Arc::clone(&self.0.ports),
            ..Known::default()
        }))
    }

    /// They come by this port as well.
    pub(super) fn come_by(&self, port: &Arc<Inner>) {
        lock(&self.0.ports).all.push(Arc::downgrade(port));
    }

    /// So many bytes are held for an address besides what is known here. Must not lock what is
    /// locked while connections are.
    pub(crate) fn holds(&self, bytes: impl Fn(IpAddr) -> usize + Send + Sync + 'static) {
        lock(&self.0.ports).holders.push(Box::new(bytes));
    }

    /// Closes half of the connections, on all ports, of the address for which most is held, the
    /// newest ones, and says how many. None while those that it closed before may still give
    /// something back: others would go for what they held. Called again and again, it gets to
    /// everybody.
    pub(crate) fn shed(&self) -> usize {
        let mut known = lock(&self.0.ports);
        let ports: Vec<_> = known.all.iter().filter_map(Weak::upgrade).collect();
        let ports: Vec<_> = ports.into_iter().map(Connections).collect();
        let lately = known
            .shed_at
            .is_some_and(|at| at.elapsed() < GIVEN_BACK_WITHIN);
        if lately && ports.iter().any(Connections::has_closing) {
            return 0;
        }
        let mut by_address = HashMap::<IpAddr, usize>::new();
        for (address, count) in ports.iter().flat_map(Connections::by_address) {
            *by_address.entry(address).or_default() += count * CONNECTION_BYTES;
        }
        for (address, held) in &mut by_address {
            *held += self.known(*address).map_or(0, |it| it.may_hold());
            *held += known.holders.iter().map(|of| of(*address)).sum::<usize>();
        }
        // Of two that hold as much, always the same.
        let most = by_address.into_iter().max_by_key(|it| (it.1, it.0));
        let closed = most.map_or(0, |(address, _)| {
            let closed = ports.iter().map(|port| port.close_half(address));
            closed.sum()
        });
        known.shed_at = (closed > 0).then(Instant::now);
        closed
    }

    fn known(&self, address: IpAddr) -> Option<Arc<Source>> {
        self.0.lock().get(&address).and_then(Weak::upgrade)
    }

    /// That of an address.
    pub(super) fn of(&self, address: IpAddr) -> Arc<Source> {
        let mut by_address = self.0.lock();
        if let Some(source) = by_address.get(&address).and_then(Weak::upgrade) {
            return source;
        }
        let known = Arc::downgrade(&self.0);
        let source = Arc::new(Source::one(address, known, &self.0.threads));
        by_address.insert(address, Arc::downgrade(&source));
        source
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Weak<Source>>> {
        self.by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let Some(known) = self.known.upgrade() else {
            return;
        };
        let mut by_address = known.lock();
        // Who has come back since is another one.
        let is_gone = |it: &Weak<Self>| it.strong_count() == 0;
        if by_address.get(&self.address).is_some_and(is_gone) {
            by_address.remove(&self.address);
        }
    }
}

impl Source {
    /// One without others, for tests.
    #[cfg(test)]
    pub(crate) fn new(address: IpAddr) -> Self {
        Self::one(address, Weak::new(), &Threads::default())
    }

    fn one(address: IpAddr, known: Weak<Known>, threads: &Threads) -> Self {
        Self {
            address,
            known,
            homes: threads.homes(),
            lanes: Lanes::of(address, threads),
            sent: Lately::default(),
            since: Instant::now(),
            calls: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            session_reads: AtomicUsize::new(0),
        }
    }

    /// Whether as much of it waits to begin there as may.
    pub(super) fn is_behind(&self, home: &Home) -> bool {
        self.lanes.are_behind(home.number())
    }

    /// So much has arrived from there.
    pub(super) fn sends(&self, bytes: usize) {
        self.sent.add(self.since.elapsed().as_secs(), bytes);
    }

    /// Whether more than a little has arrived from there lately: who goes on like that makes a
    /// shortage worse. Who took the memory may be idle by now, and those who are served need not
    /// wait for that.
    pub(super) fn sends_much(&self) -> bool {
        self.sent.of_late(self.since.elapsed().as_secs()) > MUCH_BYTES
    }

    /// What its requests may hold, roughly, and those that wait. What arrived lately says nothing
    /// of that: a member that passes writes on sends more than anybody, and has its answers at
    /// once.
    fn may_hold(&self) -> usize {
        let requests = self.calls.load(Ordering::Relaxed) + self.requests.load(Ordering::Relaxed);
        let waiting = self.waiting.load(Ordering::Relaxed);
        requests * REQUEST_BYTES + waiting * WAITING_UNIT_BYTES
    }

    /// A thread for one more of its connections.
    pub(super) fn home(&self) -> Home {
        self.homes.one()
    }

    /// Does this there, in turns with what is done for others. Within a runtime, as all that serves
    /// clients is.
    pub(super) fn spawn(&self, home: &Home, work: impl Future<Output = ()> + Send + 'static) {
        self.lanes.spawn(home.number(), work);
    }

    /// What threads have done for it that serve no clients.
    pub(crate) fn work_elsewhere(&self) -> &Arc<WorkElsewhere> {
        self.lanes.work_elsewhere()
    }

    /// The address.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }
}

/// So many of each so many things that nobody else has may be one client's. However many clients
/// take what they may, the next one finds some: what is left grows smaller with each, and is never
/// nothing before all are taken one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    of_one: usize,
    of: usize,
}

impl Share {
    pub(crate) const HALF: Self = Self { of_one: 1, of: 2 };
    pub(crate) const THREE_QUARTERS: Self = Self { of_one: 3, of: 4 };
    pub(crate) const EIGHT_NINTHS: Self = Self { of_one: 8, of: 9 };

    /// How many more it may have that has `own` of the `taken` ones, of `limit` in all.
    pub(crate) fn more(self, limit: usize, taken: usize, own: usize) -> usize {
        let of_others = taken.saturating_sub(own);
        let left = limit.saturating_sub(of_others);
        let most = (left * self.of_one).div_ceil(self.of);
        let free = limit.saturating_sub(taken);
        most.saturating_sub(own).min(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_a_share_and_the_next_one_finds_some() {
        for (share, one, others) in [
            (Share::HALF, 50, [25, 13, 6]),
            (Share::THREE_QUARTERS, 75, [19, 5, 1]),
        ] {
            let mut taken = share.more(100, 0, 0);
            assert_eq!(taken, one);
            assert_eq!(share.more(100, taken, taken), 0, "it has its share");
            for expect in others {
                let more = share.more(100, taken, 0);
                assert_eq!(more, expect);
                taken += more;
            }
        }
    }

    /// Whoever has one address of IPv6 has 2^64 of them.
    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let one = |text: &str| one_client(text.parse().unwrap());
        assert_eq!(one("2001:db8::1"), one("2001:db8::ffff:2"));
        assert_ne!(one("2001:db8::1"), one("2001:db8:0:1::1"));
        assert_ne!(one("10.0.0.1"), one("10.0.0.2"));
        assert_eq!(one("::ffff:10.0.0.1"), one("10.0.0.1"));
    }

    #[test]
    fn what_was_sent_counts_for_the_present_second_and_the_one_before() {
        let sent = Lately::default();
        let of_late = |second| sent.of_late(second);
        sent.add(0, 5);
        sent.add(0, 1);
        assert_eq!([0, 1, 2].map(of_late), [6, 6, 0]);
        sent.add(1, 10);
        assert_eq!([1, 2, 3].map(of_late), [16, 10, 0]);
        sent.add(7, 3);
        assert_eq!([7, 8, 9].map(of_late), [3, 3, 0]);
    }

    #[test]
    fn what_others_give_back_may_be_had() {
        assert_eq!(Share::HALF.more(100, 60, 20), 10);
        assert_eq!(Share::HALF.more(100, 20, 20), 30);
    }

    #[test]
    fn a_single_place_may_be_anybodys_and_nobody_has_more_than_there_is() {
        assert_eq!(Share::THREE_QUARTERS.more(1, 0, 0), 1);
        assert_eq!(Share::THREE_QUARTERS.more(1, 1, 0), 0);
        // Numbers that are read one after the other need not fit.
        assert_eq!(Share::HALF.more(10, 12, 1), 0);
        assert_eq!(Share::HALF.more(10, 3, 5), 0);
    }
}
