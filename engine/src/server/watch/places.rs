//! Places for watches and their streams: so many in all, and so many for each connection, so that no client takes
//! those of all others.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Whose place it is; `None`: of whom the transport says nothing.
pub(super) type Connection = Option<SocketAddr>;

/// A bound on the places of all, and one on those of each connection.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    limit_each: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_connection: HashMap<Connection, usize>,
}

/// A place that is taken, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<Shared>,
    connection: Connection,
}

/// Which bound is reached, and how high it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// That of all.
    Member(usize),
    /// That of the connection.
    Connection(usize),
}

impl Places {
    /// So many in all, and so many for each connection.
    pub(super) fn new(limit: usize, limit_each: usize) -> Self {
        Self(Arc::new(Shared {
            limit,
            limit_each,
            taken: Mutex::default(),
        }))
    }

    /// Takes one.
    pub(super) fn take(&self, connection: Connection) -> Result<Place, Full> {
        let shared = &self.0;
        let mut taken = shared.taken();
        if taken.all >= shared.limit {
            return Err(Full::Member(shared.limit));
        }
        let of_connection = taken.by_connection.get(&connection).copied();
        if of_connection.unwrap_or(0) >= shared.limit_each {
            return Err(Full::Connection(shared.limit_each));
        }
        taken.all += 1;
        *taken.by_connection.entry(connection).or_default() += 1;
        Ok(Place {
            shared: Arc::clone(shared),
            connection,
        })
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        self.0.taken().all
    }
}

impl Shared {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.shared.taken();
        taken.all -= 1;
        if let Some(count) = taken.by_connection.get_mut(&self.connection) {
            *count -= 1;
            if *count == 0 {
                taken.by_connection.remove(&self.connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_cannot_take_the_places_of_all() {
        let places = Places::new(3, 2);
        let [one, other] = [1, 2].map(|port| Some(SocketAddr::from(([127, 0, 0, 1], port))));
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
}
