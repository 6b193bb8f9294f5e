//! Connections to the members' Admin service, by pod address. Pod addresses come from the Pod
//! object, so nothing waits for DNS; every call has a short timeout.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dengine_client::{AdminClient, AdminOptions, Error};
use dengine_protocol::{ports, v1};
use tokio::sync::Mutex;
use tokio::time::timeout;

const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Membership changes wait for a quorum.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// A member that hangs must not hold up the reconciliation.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections that are kept: a thousand clusters of three, and some more. Beyond it, the least
/// recently used are closed.
const CONNECTIONS_MAX: usize = 4096;

/// An address that did not answer is skipped for this long, then for twice as long each time: a
/// timeout takes seconds of a reconciliation worker, and a zone that is down has many such
/// addresses.
const SILENCE_MIN: Duration = Duration::from_secs(2);
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The limit for a pod that is Ready: it should answer soon.
const SILENCE_OF_READY_MAX: Duration = Duration::from_secs(3);
/// An attempt that takes at least this long counts as a timeout.
const COSTLY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Members {
    addresses: Mutex<Addresses<AdminClient>>,
    ports: Ports,
}

/// Ports of the members.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// Port of `Admin`.
    pub admin: u16,
    /// Port of `Admin` of older versions.
    pub client: u16,
}

impl Default for Members {
    fn default() -> Self {
        Self::at(Ports {
            admin: ports::ADMIN,
            client: ports::CLIENT,
        })
    }
}

impl Members {
    pub fn at(ports: Ports) -> Self {
        Self {
            addresses: Mutex::default(),
            ports,
        }
    }

    /// Status of the member at this address; `None` if it does not answer in time, or did not a
    /// moment ago. `ready`: whether its pod is Ready.
    pub(crate) async fn status(&self, ip: &str, ready: bool) -> Option<v1::StatusResponse> {
        if self
            .addresses
            .lock()
            .await
            .is_silent(ip, ready, Instant::now())
        {
            return None;
        }
        let started = Instant::now();
        let asked = async { self.client(ip).await.ok()?.status().await.ok() };
        let answer = timeout(OBSERVE_TIMEOUT, asked).await.ok().flatten();
        if answer.is_none() {
            let mut addresses = self.addresses.lock().await;
            addresses.did_not_answer(ip, started.elapsed(), Instant::now());
        }
        answer
    }

    /// The member list, confirmed by a quorum; `None` if no quorum answers through this member.
    pub(crate) async fn members(&self, ip: &str) -> Option<v1::MembersResponse> {
        let client = self.client(ip).await.ok()?;
        timeout(OBSERVE_TIMEOUT, client.members()).await.ok()?.ok()
    }

    /// A connection for one change.
    pub(crate) async fn client(&self, ip: &str) -> Result<AdminClient, Error> {
        if let Some(client) = self.addresses.lock().await.connected(ip) {
            return Ok(client);
        }
        let client = self.connect(ip).await?;
        let mut addresses = self.addresses.lock().await;
        addresses.keep(ip, client.clone());
        Ok(client)
    }

    /// Connects to the port of `Admin`; an older member has it on the port of clients, and refuses
    /// the other at once.
    async fn connect(&self, ip: &str) -> Result<AdminClient, Error> {
        let options = AdminOptions {
            connect_timeout: CONNECT_TIMEOUT,
            request_timeout: CHANGE_TIMEOUT,
        };
        let started = Instant::now();
        match AdminClient::connect_with(&address(ip, self.ports.admin), options).await {
            Err(_) if started.elapsed() < CONNECT_TIMEOUT => {
                AdminClient::connect_with(&address(ip, self.ports.client), options).await
            }
            connected => connected,
        }
    }
}

/// State of each address. Generic, so that it can be tested without members.
#[derive(Debug)]
struct Addresses<C> {
    known: HashMap<String, Known<C>>,
    uses: u64,
}

#[derive(Debug)]
struct Known<C> {
    connection: Option<C>,
    last_use: u64,
    silence: Option<Silence>,
}

/// When an address did not answer, and how long it is skipped.
#[derive(Clone, Copy, Debug)]
struct Silence {
    since: Instant,
    pause: Duration,
}

impl<C> Default for Addresses<C> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            uses: 0,
        }
    }
}

impl<C: Clone> Addresses<C> {
    fn connected(&mut self, ip: &str) -> Option<C> {
        self.uses += 1;
        let known = self.known.get_mut(ip)?;
        known.last_use = self.uses;
        known.connection.clone()
    }

    fn keep(&mut self, ip: &str, connection: C) {
        let known = self.entry(ip);
        known.connection = Some(connection);
    }

    fn is_silent(&self, ip: &str, ready: bool, now: Instant) -> bool {
        let known = self
            .known
            .get(ip)
            .filter(|known| known.connection.is_none());
        known
            .and_then(|known| known.silence)
            .is_some_and(|silence| {
                let pause_max = if ready {
                    SILENCE_OF_READY_MAX
                } else {
                    SILENCE_MAX
                };
                now < silence.since + silence.pause.min(pause_max)
            })
    }

    /// Also drops the connection, so that the next call makes a new one. A refusal at once, as by a
    /// server that is starting, costs nothing and may be retried.
    fn did_not_answer(&mut self, ip: &str, took: Duration, now: Instant) {
        let known = self.entry(ip);
        if took < COSTLY {
            known.connection = None;
            return;
        }
        // A connection that worked until now ends earlier failures.
        let before = known.silence.filter(|_| known.connection.is_none());
        known.connection = None;
        known.silence = Some(Silence {
            since: now,
            pause: before.map_or(SILENCE_MIN, |last| (last.pause * 2).min(SILENCE_MAX)),
        });
    }

    fn entry(&mut self, ip: &str) -> &mut Known<C> {
        self.uses += 1;
        let last_use = self.uses;
        if self.known.len() >= CONNECTIONS_MAX && !self.known.contains_key(ip) {
            self.make_room();
        }
        let known = self.known.entry(ip.to_owned()).or_insert(Known {
            connection: None,
            last_use,
            silence: None,
        });
        known.last_use = last_use;
        known
    }

    /// Closes one in eight at once, so that this is rare.
    fn make_room(&mut self) {
        let mut uses: Vec<u64> = self.known.values().map(|known| known.last_use).collect();
        uses.sort_unstable();
        let oldest_to_stay = uses[uses.len() / 8];
        self.known
            .retain(|_, known| known.last_use > oldest_to_stay);
    }
}

fn address(ip: &str, port: u16) -> String {
    if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families() {
        assert_eq!(address("10.0.0.1", 4103), "10.0.0.1:4103");
        assert_eq!(address("fd00::1", 4103), "[fd00::1]:4103");
    }

    #[test]
    fn used_connections_stay_open() {
        let mut addresses = Addresses::default();
        for n in 0..CONNECTIONS_MAX {
            addresses.keep(&n.to_string(), n);
            assert_eq!(addresses.connected("0"), Some(0), "after {n}");
        }
        addresses.keep("one more", 7);
        assert_eq!(addresses.connected("0"), Some(0), "it is used all the time");
        assert_eq!(addresses.connected("1"), None, "nobody used it for long");
        let last = (CONNECTIONS_MAX - 1).to_string();
        assert!(addresses.connected(&last).is_some());
        assert!(addresses.known.len() > CONNECTIONS_MAX * 3 / 4);
    }

    #[test]
    fn a_silent_address_is_skipped_longer_each_time() {
        let (mut addresses, mut now) = (Addresses::<()>::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..6 {
            addresses.did_not_answer("a", COSTLY, now);
            let start = now;
            while addresses.is_silent("a", false, now) {
                now += Duration::from_millis(500);
            }
            pauses.push((now - start).as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
        addresses.did_not_answer("a", COSTLY, now);
        let soon = now + SILENCE_OF_READY_MAX;
        assert!(addresses.is_silent("a", false, soon));
        assert!(!addresses.is_silent("a", true, soon), "its pod is ready");
        addresses.keep("a", ());
        assert!(!addresses.is_silent("a", false, now), "it answered");
        addresses.did_not_answer("a", Duration::ZERO, now);
        addresses.did_not_answer("b", Duration::ZERO, now);
        assert!(!addresses.is_silent("b", false, now), "refused at once");
        addresses.keep("a", ());
        addresses.did_not_answer("a", COSTLY, now);
        let soon = now + SILENCE_MIN;
        assert!(!addresses.is_silent("a", false, soon), "a first failure");
    }
}
