//! Which key each request uses. Pure: the same seed and numbers give the same keys.
//!
//! Key `i` is the number `i` in hexadecimal, padded with zeros to the key size, so that keys sort
//! as their numbers do and can be typed by a person. Before it stands the name of the run's folder,
//! if it has one.

use bytes::{Bytes, BytesMut};
use dengine_bench_model::results::{Shape, Workload};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// Keys that are made with one allocation.
const KEYS_PER_CHUNK: usize = 128;
/// Unless keys are so large that a chunk of them would outgrow this.
const CHUNK_BYTES_MAX: usize = 64 << 10;

/// How many different keys a shape uses.
#[must_use]
pub fn space(shape: &Shape) -> u64 {
    match (shape.workload, shape.key_space) {
        // Two clients with one key would be in each other's way.
        (Workload::Swap | Workload::Seen, _) => shape.clients.into(),
        (_, 0) => shape.total,
        (_, space) => space,
    }
}

/// Keys that each request of a scan reads.
#[must_use]
pub fn of_scan(shape: &Shape) -> u64 {
    let all = space(shape);
    shape.scan_keys.map_or(all, |keys| all.min(keys.into()))
}

/// By how much the keys of a repetition, counted from 0, lie behind those of the first. What writes
/// each key once would otherwise only overwrite what the repetition before it inserted, which is
/// another load.
#[must_use]
pub fn of_repetition(shape: &Shape, repetition: u64) -> u64 {
    if shape.workload == Workload::Put && shape.key_space == 0 {
        repetition * shape.total
    } else {
        0
    }
}

/// Whether so many keys can be told apart within `key_size` bytes.
#[must_use]
pub fn fits(keys: u64, key_size: u32) -> bool {
    key_size >= 16 || keys <= 1 << (4 * key_size)
}

/// In which order the keys of the space are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Request `n` uses key `n`, starting over at the end of the space.
    Sequential,
    /// Each request uses any key, independently of all others.
    Random,
    /// Every key once before any is used again, in an order that looks random.
    Shuffled,
}

impl Order {
    /// The order that a shape asks for.
    #[must_use]
    pub fn of(shape: &Shape) -> Self {
        match (shape.sequential_keys, shape.key_space) {
            (true, _) => Order::Sequential,
            (false, 0) => Order::Shuffled,
            (false, _) => Order::Random,
        }
    }
}

/// What all clients of a run agree on.
#[derive(Clone, Debug)]
pub struct Keys {
    /// What each key begins with.
    folder: Bytes,
    space: u64,
    size: usize,
    order: Order,
    /// Number `n` is shuffled to `(n * factor + offset) % space`; the factor shares no divisor with
    /// the space, which makes it a permutation.
    factor: u64,
    offset: u64,
    seed: u64,
    /// The number of the first key.
    first: u64,
}

impl Keys {
    /// Keys for a space of `space` keys, which is not 0.
    #[must_use]
    pub fn new(space: u64, size: u32, order: Order, seed: u64) -> Self {
        assert!(
            space > 0 && fits(space, size),
            "checked when the command line was parsed"
        );
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut factor = rng.random_range(0..space) | 1;
        while greatest_common_divisor(factor, space) != 1 {
            factor += 2;
        }
        let offset = rng.random_range(0..space);
        Keys {
            folder: Bytes::new(),
            space,
            size: size as usize,
            order,
            factor,
            offset,
            seed,
            first: 0,
        }
    }

    /// The same keys in a folder.
    #[must_use]
    pub fn inside(self, folder: Bytes) -> Self {
        Keys { folder, ..self }
    }

    /// How many numbers, from 0 on, reach to the last key.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first + self.space
    }

    /// Bytes of the number in each key.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The same keys, each with its number so much higher.
    #[must_use]
    pub fn shifted(self, by: u64) -> Self {
        let last = self.first + by + self.space;
        assert!(
            self.size >= 16 || fits(last, self.size as u32),
            "checked when the command line was parsed"
        );
        Keys {
            first: self.first + by,
            ..self
        }
    }

    /// The keys of one client.
    #[must_use]
    pub fn client(&self, client: u64) -> ClientKeys {
        // Any fixed odd number keeps neighbouring clients' seeds apart.
        let seed = self.seed ^ (client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        ClientKeys {
            keys: self.clone(),
            rng,
            chunk: BytesMut::new(),
        }
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// One client's keys, made without an allocation for each.
#[derive(Debug)]
pub struct ClientKeys {
    keys: Keys,
    rng: Xoshiro256PlusPlus,
    chunk: BytesMut,
}

impl ClientKeys {
    /// The key of the run's request `number`.
    pub fn key(&mut self, number: u64) -> Bytes {
        let index = self.index(number);
        self.render(index)
    }

    /// The key at a place of the space, whatever the order.
    pub fn nth(&mut self, index: u64) -> Bytes {
        self.render(index % self.keys.space)
    }

    /// The first and the last of so many keys in a row: from that of request `number` on, unless
    /// there are too few behind it, then the last of the space; all of a smaller space.
    pub fn row(&mut self, number: u64, keys: u64) -> (Bytes, Bytes) {
        let keys = keys.clamp(1, self.keys.space);
        let first = self.index(number).min(self.keys.space - keys);
        (self.render(first), self.render(first + keys - 1))
    }

    fn index(&mut self, number: u64) -> u64 {
        let Keys {
            space,
            factor,
            offset,
            ..
        } = self.keys;
        match self.keys.order {
            Order::Sequential => number % space,
            Order::Random => self.rng.random_range(0..space),
            Order::Shuffled => {
                let shuffled = u128::from(number % space) * u128::from(factor) + u128::from(offset);
                (shuffled % u128::from(space)) as u64
            }
        }
    }

    fn render(&mut self, index: u64) -> Bytes {
        let folder = &self.keys.folder;
        let size = folder.len() + self.keys.size;
        if self.chunk.capacity() < size {
            let keys = (CHUNK_BYTES_MAX / size).clamp(1, KEYS_PER_CHUNK);
            self.chunk = BytesMut::with_capacity(keys * size);
        }
        self.chunk.extend_from_slice(folder);
        self.chunk.resize(size, b'0');
        write_number(&mut self.chunk[folder.len()..], self.keys.first + index);
        self.chunk.split().freeze()
    }
}

/// The key of this number.
#[must_use]
pub fn numbered(folder: &[u8], size: usize, number: u64) -> Vec<u8> {
    let mut key = folder.to_vec();
    key.resize(folder.len() + size, b'0');
    write_number(&mut key[folder.len()..], number);
    key
}

/// Over zeros.
fn write_number(place: &mut [u8], mut rest: u64) {
    for byte in place.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *byte = b"0123456789abcdef"[(rest % 16) as usize];
        rest /= 16;
    }
}

/// A value of random bytes.
#[must_use]
pub fn value(size: u32, seed: u64) -> Bytes {
    let mut value = vec![0; size as usize];
    Xoshiro256PlusPlus::seed_from_u64(seed).fill(&mut value[..]);
    value.into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn keys(space: u64, size: u32, order: Order, seed: u64) -> Vec<Bytes> {
        let mut client = Keys::new(space, size, order, seed).client(0);
        (0..space).map(|number| client.key(number)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_key_has_the_size_and_lies_in_the_space(
            space in 1..2_000_u64,
            size in 3..100_u32,
            order in prop::sample::select(vec![Order::Sequential, Order::Random, Order::Shuffled]),
            seed: u64,
        ) {
            for key in keys(space, size, order, seed) {
                prop_assert_eq!(key.len(), size as usize);
                let text = std::str::from_utf8(&key).unwrap();
                let digits = text.trim_start_matches('0');
                let index = if digits.is_empty() { 0 } else { u64::from_str_radix(digits, 16)? };
                prop_assert!(index < space);
            }
        }

        #[test]
        fn shuffled_keys_are_each_used_once(space in 1..5_000_u64, seed: u64) {
            let distinct: HashSet<_> = keys(space, 8, Order::Shuffled, seed).into_iter().collect();
            prop_assert_eq!(distinct.len() as u64, space);
        }

        #[test]
        fn the_same_seed_gives_the_same_keys(space in 1..500_u64, seed: u64) {
            prop_assert_eq!(
                keys(space, 8, Order::Random, seed),
                keys(space, 8, Order::Random, seed)
            );
        }
    }

    #[test]
    fn sequential_keys_ascend_and_start_over() {
        let mut client = Keys::new(300, 4, Order::Sequential, 1).client(0);
        assert_eq!(client.key(0), "0000");
        assert_eq!(client.key(299), "012b");
        assert_eq!(client.key(300), "0000");
        let all = keys(300, 4, Order::Sequential, 1);
        assert!(all.is_sorted());
    }

    #[test]
    fn a_row_ends_within_the_space() {
        let mut client = Keys::new(300, 4, Order::Sequential, 1).client(0);
        let mut row = |number, keys| client.row(number, keys);
        assert_eq!(row(0, 100), ("0000".into(), "0063".into()));
        assert_eq!(row(200, 100), ("00c8".into(), "012b".into()));
        assert_eq!(row(299, 100), row(200, 100), "too few keys are behind it");
        assert_eq!(
            row(7, 1_000),
            ("0000".into(), "012b".into()),
            "all there are"
        );
    }

    #[test]
    fn keys_of_a_folder_are_the_same_behind_its_name() {
        let folder = Bytes::from_static(b"bench/1/");
        let mut inside = Keys::new(300, 4, Order::Sequential, 1)
            .inside(folder.clone())
            .client(0);
        assert_eq!(inside.key(299), "bench/1/012b");
        assert_eq!(numbered(&folder, 4, 299), inside.key(299));
    }

    #[test]
    fn shifted_keys_are_others_of_the_same_number() {
        let plain: HashSet<_> = keys(300, 4, Order::Shuffled, 1).into_iter().collect();
        let mut client = Keys::new(300, 4, Order::Shuffled, 1).shifted(300).client(0);
        let shifted: HashSet<_> = (0..300).map(|number| client.key(number)).collect();
        assert_eq!(shifted.len(), 300);
        assert!(plain.is_disjoint(&shifted));
    }

    #[test]
    fn random_keys_spread_over_the_space_and_differ_between_clients() {
        let keys = Keys::new(1_000_000, 8, Order::Random, 1);
        let draw = |client| {
            let mut keys = keys.client(client);
            (0..100).map(|n| keys.key(n)).collect::<HashSet<_>>()
        };
        let (a, b) = (draw(0), draw(1));
        assert!(a.len() > 95 && b.len() > 95);
        assert!(a.intersection(&b).count() < 5);
    }

    #[test]
    fn a_key_size_bounds_the_space() {
        assert!(fits(256, 2) && !fits(257, 2));
        assert!(fits(1_000_000_000, 8) && fits(u64::MAX, 16));
    }

    #[test]
    fn values_are_random_and_repeatable() {
        assert_eq!(value(256, 1), value(256, 1));
        assert_ne!(value(256, 1), value(256, 2));
        assert_eq!(value(0, 1).len(), 0);
    }
}
