//! Messages that arrive in parts: how far each has come, and how much all that are not whole may take together. When it is
//! too much the oldest is given up, which is never that of somebody who just sends.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

/// The prefix of each message: a flag and four bytes of length.
const PREFIX_BYTES: usize = 5;

/// Parts of messages, of all who share it. Clones do.
#[derive(Clone)]
pub(crate) struct Parts(Arc<Mutex<AllParts>>);

struct AllParts {
    last: u64,
    /// The oldest first.
    open: BTreeMap<u64, Open>,
    bytes: usize,
    bytes_max: usize,
}

struct Open {
    bytes: usize,
    given_up: Arc<AtomicBool>,
    waker: Waker,
}

/// A message that has not arrived whole. Dropped when it has, or when nobody waits for it.
pub(crate) struct Part {
    all: Parts,
    number: u64,
    given_up: Arc<AtomicBool>,
}

impl Parts {
    /// So many bytes together.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(AllParts {
            last: 0,
            open: BTreeMap::new(),
            bytes: 0,
            bytes_max,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, AllParts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, of nothing so far. `waker` is woken when it is given up.
    pub(crate) fn begin(&self, waker: Waker) -> Part {
        let given_up = Arc::<AtomicBool>::default();
        let mut all = self.lock();
        all.last += 1;
        let number = all.last;
        let open = Open {
            bytes: 0,
            given_up: Arc::clone(&given_up),
            waker,
        };
        all.open.insert(number, open);
        Part {
            all: self.clone(),
            number,
            given_up,
        }
    }
}

impl Part {
    /// It has so many bytes now. If all parts have too many, the oldest are given up, maybe this one.
    pub(crate) fn grow(&self, bytes: usize, waker: &Waker) {
        let mut all = self.all.lock();
        let Some(open) = all.open.get_mut(&self.number) else {
            return;
        };
        let more = bytes.saturating_sub(open.bytes);
        open.bytes = bytes;
        open.waker.clone_from(waker);
        all.bytes += more;
        while all.bytes > all.bytes_max
            && let Some((_, oldest)) = all.open.pop_first()
        {
            all.bytes -= oldest.bytes;
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
        let mut all = self.all.lock();
        if let Some(open) = all.open.remove(&self.number) {
            all.bytes -= open.bytes;
        }
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

    /// Were the newest refused instead, clients that never end would shut out all others.
    #[test]
    fn when_parts_take_too_much_the_oldest_is_given_up() {
        let parts = Parts::new(100);
        let waker = Waker::noop();
        let [old, young] = [(); 2].map(|()| parts.begin(waker.clone()));
        old.grow(60, waker);
        young.grow(30, waker);
        assert!(!old.is_given_up());
        young.grow(50, waker);
        assert!(old.is_given_up() && !young.is_given_up());
        drop(old);
        assert_eq!(parts.lock().bytes, 50);
        drop(young);
        assert_eq!(parts.lock().bytes, 0);
    }
}
