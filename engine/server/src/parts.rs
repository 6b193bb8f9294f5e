//! Messages that arrive in parts: how far each has come, and how much all that are not whole may
//! take together. When it is too much the oldest is given up of the address with most bytes, which
//! is never that of somebody who just sends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The prefix of each message: a flag and four bytes of length.
const PREFIX_BYTES: usize = 5;

/// Parts of messages, of all who share it. Clones do.
#[derive(Clone)]
pub(crate) struct Parts(Arc<Mutex<AllParts>>);

struct AllParts {
    last: u64,
    by_address: HashMap<Whose, PartsOfOne>,
    bytes: usize,
    bytes_max: usize,
}

/// From where it comes; `None`: nobody knows.
type Whose = Option<IpAddr>;

#[derive(Default)]
struct PartsOfOne {
    /// The oldest first.
    open: BTreeMap<u64, Open>,
    bytes: usize,
}

struct Open {
    bytes: usize,
    given_up: Arc<AtomicBool>,
    waker: Waker,
}

/// A message that has not arrived whole. Dropped when it has, or when nobody waits for it.
pub(crate) struct Part {
    all: Parts,
    whose: Whose,
    number: u64,
    given_up: Arc<AtomicBool>,
}

impl Parts {
    /// So many bytes together.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(AllParts {
            last: 0,
            by_address: HashMap::new(),
            bytes: 0,
            bytes_max,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, AllParts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes of them come from there.
    pub(crate) fn held_by(&self, from: IpAddr) -> usize {
        self.lock()
            .by_address
            .get(&Some(from))
            .map_or(0, |it| it.bytes)
    }

    /// One more from there, of nothing so far. `waker` is woken when it is given up.
    pub(crate) fn begin(&self, whose: Whose, waker: Waker) -> Part {
        let given_up = Arc::<AtomicBool>::default();
        let mut all = self.lock();
        all.last += 1;
        let number = all.last;
        let open = Open {
            bytes: 0,
            given_up: Arc::clone(&given_up),
            waker,
        };
        let of_one = all.by_address.entry(whose).or_default();
        of_one.open.insert(number, open);
        Part {
            all: self.clone(),
            whose,
            number,
            given_up,
        }
    }
}

impl AllParts {
    /// Takes one out that is there.
    fn remove(&mut self, whose: Whose, number: u64) -> Option<Open> {
        let of_one = self.by_address.get_mut(&whose)?;
        let open = of_one.open.remove(&number)?;
        of_one.bytes -= open.bytes;
        self.bytes -= open.bytes;
        if of_one.open.is_empty() {
            self.by_address.remove(&whose);
        }
        Some(open)
    }

    /// The oldest of the address that has most.
    fn pop_of_most(&mut self) -> Option<Open> {
        // Of two that have as many, the one that began earlier.
        let age = |of_one: &PartsOfOne| of_one.open.keys().next().map(|it| Reverse(*it));
        let most = self
            .by_address
            .iter()
            .max_by_key(|(_, it)| (it.bytes, age(it)));
        let (whose, oldest) = most.map(|(whose, it)| (*whose, age(it)))?;
        self.remove(whose, oldest?.0)
    }
}

impl Part {
    /// It has so many bytes now. If all parts have too many, some are given up, maybe this one.
    pub(crate) fn grow(&self, bytes: usize, waker: &Waker) {
        let mut all = self.all.lock();
        let Some(of_one) = all.by_address.get_mut(&self.whose) else {
            return;
        };
        let Some(open) = of_one.open.get_mut(&self.number) else {
            return;
        };
        let more = bytes.saturating_sub(open.bytes);
        open.bytes += more;
        open.waker.clone_from(waker);
        of_one.bytes += more;
        all.bytes += more;
        while all.bytes > all.bytes_max
            && let Some(oldest) = all.pop_of_most()
        {
            oldest.given_up.store(true, Ordering::Relaxed);
            oldest.waker.wake();
        }
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.all.lock().remove(self.whose, self.number);
    }
}

/// How far the message that is arriving has come.
#[derive(Default)]
pub(crate) struct Message {
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// 0 while it is not known.
    pub(crate) length: usize,
    left: usize,
}

impl Message {
    /// Takes what has arrived; whether a message ended with it, or several did.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> bool {
        let mut ended = false;
        while let Some((&first, rest)) = bytes.split_first() {
            if self.prefix_bytes < PREFIX_BYTES {
                self.prefix[self.prefix_bytes] = first;
                self.prefix_bytes += 1;
                bytes = rest;
                if self.prefix_bytes == PREFIX_BYTES {
                    let [_, length @ ..] = self.prefix;
                    self.length = u32::from_be_bytes(length) as usize;
                    self.left = self.length;
                }
            } else {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
            }
            if self.prefix_bytes == PREFIX_BYTES && self.left == 0 {
                *self = Self::default();
                ended = true;
            }
        }
        ended
    }

    /// What has arrived of one that is not whole.
    pub(crate) fn bytes(&self) -> usize {
        self.prefix_bytes + self.length - self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixed(length: u32, bytes: usize) -> Vec<u8> {
        [&[0][..], &length.to_be_bytes(), &vec![7; bytes]].concat()
    }

    #[test]
    fn what_has_not_arrived_whole_is_counted_however_it_is_cut() {
        let stream = [prefixed(3, 3), prefixed(0, 0), prefixed(10, 4)].concat();
        for size in 1..stream.len() {
            let mut message = Message::default();
            let ended = stream
                .chunks(size)
                .filter(|part| message.take(part))
                .count();
            assert!((1..=2).contains(&ended), "{size}");
            assert_eq!(message.bytes(), PREFIX_BYTES + 4, "{size}");
            assert!(!message.take(&[7; 5]) && message.take(&[7; 1]), "{size}");
            assert_eq!(message.bytes(), 0, "{size}");
        }
    }

    fn from(last: u8) -> Whose {
        Some([10, 0, 0, last].into())
    }

    /// Were the newest refused instead, clients that never end would shut out all others.
    #[test]
    fn when_parts_take_too_much_the_oldest_is_given_up() {
        let parts = Parts::new(100);
        let waker = Waker::noop();
        let [old, young] = [(); 2].map(|()| parts.begin(from(1), waker.clone()));
        old.grow(60, waker);
        young.grow(30, waker);
        assert!(!old.is_given_up());
        young.grow(50, waker);
        assert!(old.is_given_up() && !young.is_given_up());
        drop(old);
        assert_eq!(parts.lock().bytes, 50);
        drop(young);
        assert_eq!(parts.lock().bytes, 0);
        assert!(parts.lock().by_address.is_empty());
    }

    /// Whoever began one after the other had those of everybody on a slower link given up.
    #[test]
    fn who_has_most_gives_up_its_own() {
        let parts = Parts::new(100);
        let waker = Waker::noop();
        let slow = parts.begin(from(1), waker.clone());
        slow.grow(30, waker);
        let many: Vec<_> = (0..50)
            .map(|_| {
                let part = parts.begin(from(2), waker.clone());
                part.grow(20, waker);
                part
            })
            .collect();
        assert!(!slow.is_given_up());
        let open = many.iter().filter(|it| !it.is_given_up()).count();
        assert_eq!(open, 3);
        assert!(!many[49].is_given_up(), "the oldest ones");
        assert_eq!(parts.lock().bytes, 90);
    }
}
