//! Places for watches, their streams and those of leases: so many in all, so many for each
//! connection, and a share for each address, so that no client takes those of all others.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::connections::{Share, one_client};

/// What one address may have of the places that no other has.
const SHARE: Share = Share::THREE_QUARTERS;

/// Whose place it is; `None`: of whom the transport says nothing.
pub(super) type Connection = Option<SocketAddr>;

/// A bound on the places of all, and one on those of each connection.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<PlacesShared>);

#[derive(Debug)]
struct PlacesShared {
    limit: usize,
    limit_each: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_connection: HashMap<Connection, usize>,
    by_address: HashMap<Option<IpAddr>, usize>,
}

/// Places that are taken, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<PlacesShared>,
    connection: Connection,
    count: usize,
}

/// Which bound is reached, and how high it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// That of all.
    Member(usize),
    /// That of the connection.
    Connection(usize),
    /// That of its address, which depends on what others have: how many it has.
    Address(usize),
}

fn address(connection: Connection) -> Option<IpAddr> {
    connection.map(|it| one_client(it.ip()))
}

impl Places {
    /// So many in all, and so many for each connection.
    pub(super) fn new(limit: usize, limit_each: usize) -> Self {
        Self(Arc::new(PlacesShared {
            limit,
            limit_each,
            taken: Mutex::default(),
        }))
    }

    /// Takes one.
    pub(super) fn take(&self, connection: Connection) -> Result<Place, Full> {
        self.take_many(connection, 1)
    }

    /// Takes so many at once, or none.
    pub(super) fn take_many(&self, connection: Connection, count: usize) -> Result<Place, Full> {
        let shared = &self.0;
        let mut taken = shared.taken();
        if taken.all + count > shared.limit {
            return Err(Full::Member(shared.limit));
        }
        let of_connection = taken.by_connection.get(&connection).copied();
        if of_connection.unwrap_or(0) + count > shared.limit_each {
            return Err(Full::Connection(shared.limit_each));
        }
        let address = address(connection);
        let of_address = taken.by_address.get(&address).copied().unwrap_or(0);
        if SHARE.more(shared.limit, taken.all, of_address) < count {
            return Err(Full::Address(of_address));
        }
        taken.all += count;
        *taken.by_connection.entry(connection).or_default() += count;
        *taken.by_address.entry(address).or_default() += count;
        Ok(Place {
            shared: Arc::clone(shared),
            connection,
            count,
        })
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        self.0.taken().all
    }
}

impl PlacesShared {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.shared.taken();
        taken.all -= self.count;
        give_back(&mut taken.by_connection, &self.connection, self.count);
        give_back(&mut taken.by_address, &address(self.connection), self.count);
    }
}

fn give_back<K: Eq + Hash>(counts: &mut HashMap<K, usize>, of: &K, count: usize) {
    if let Some(taken) = counts.get_mut(of) {
        *taken -= count;
        if *taken == 0 {
            counts.remove(of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_cannot_take_the_places_of_all() {
        let places = Places::new(3, 2);
        let [one, other] = [1, 2].map(|last| Some(SocketAddr::from(([127, 0, 0, last], 1))));
        let first = places.take(one).unwrap();
        let second = places.take(one).unwrap();
        assert_eq!(places.take(one).unwrap_err(), Full::Connection(2));
        let third = places.take(other).unwrap();
        assert_eq!(places.take(None).unwrap_err(), Full::Member(3));
        drop(first);
        let again = places.take(one).unwrap();
        drop((second, third, again));
        assert_eq!(places.taken(), 0);
        assert!(places.0.taken().by_connection.is_empty());
    }

    #[test]
    fn what_takes_several_takes_all_of_them_or_none() {
        let places = Places::new(8, 4);
        let one = Some(SocketAddr::from(([127, 0, 0, 1], 1)));
        let three = places.take_many(one, 3).unwrap();
        let full = places.take_many(one, 2).unwrap_err();
        assert_eq!(full, Full::Connection(4));
        assert_eq!(places.taken(), 3);
        drop(three);
        assert_eq!(places.taken(), 0);
        assert!(places.take_many(one, 4).is_ok());
    }

    #[test]
    fn an_address_with_many_connections_cannot_either() {
        let places = Places::new(8, 2);
        let from = |last, port| Some(SocketAddr::from(([127, 0, 0, last], port)));
        let mut taken = Vec::new();
        for port in 1..=3 {
            taken.extend((0..2).map(|_| places.take(from(1, port)).unwrap()));
        }
        assert_eq!(places.take(from(1, 4)).unwrap_err(), Full::Address(6));
        let other = places.take(from(2, 1)).unwrap();
        drop(taken);
        assert!(places.take(from(1, 4)).is_ok());
        drop(other);
        assert!(places.0.taken().by_address.is_empty());
    }
}
