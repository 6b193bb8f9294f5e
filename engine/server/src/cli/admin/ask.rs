//! Reaching the members of a cluster, by any of its addresses.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, bail};
use dengine_client::{AdminClient, AdminOptions, Error};
use dengine_protocol::v1::{Member, MembersResponse, StatusResponse};
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Pause before something is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Longest wait for one member, so that one that is gone does not take the time of the others.
const MEMBER_PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for an endpoint to say who it is, where another address of its member is known.
const NAMED_PATIENCE: Duration = Duration::from_secs(1);

/// A cluster, as it was named on the command line.
pub(super) struct Cluster {
    endpoints: Vec<String>,
    deadline: Instant,
    options: AdminOptions,
}

/// A member, and where to ask it.
pub(super) struct Place {
    address: String,
    /// From the leader's list; `None` if there is no leader to ask.
    member: Option<Member>,
    /// Connected to it already.
    client: Option<AdminClient>,
}

/// A member and what came of asking it.
pub(super) struct Asked<T> {
    pub(super) address: String,
    /// As its [`Place`]'s.
    pub(super) member: Option<Member>,
    pub(super) answer: Result<T, Error>,
}

impl Cluster {
    /// Everything must be over within `limit`.
    pub(super) fn new(endpoints: Vec<String>, limit: Duration) -> Self {
        Self {
            endpoints,
            deadline: Instant::now() + limit,
            options: AdminOptions {
                connect_timeout: limit.min(Duration::from_secs(2)),
                request_timeout: limit,
            },
        }
    }

    /// Asks the endpoints in turn until one answers. All that is asked so may be asked twice.
    pub(super) async fn ask<T, F>(
        &self,
        what: &str,
        ask: impl Fn(AdminClient) -> F,
    ) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut endpoints = self.endpoints.iter().cycle();
        let mut left = self.endpoints.len();
        loop {
            let endpoint = endpoints
                .next()
                .context("no endpoint was given (--endpoints)")?;
            let answer = timeout_at(self.deadline, async {
                ask(AdminClient::connect_with(endpoint, self.options).await?).await
            });
            let error = match answer.await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => bail!("{what}: {endpoint} gave no answer in time (--timeout)"),
            };
            let passes = error.retryable() || matches!(error, Error::UnknownOutcome { .. });
            if !passes || Instant::now() + RETRY_PAUSE >= self.deadline {
                return Err(error).with_context(|| format!("{what}, by {endpoint}"));
            }
            left -= 1;
            if left == 0 {
                left = self.endpoints.len();
                sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// The members, by the leader's word.
    pub(super) async fn members(&self) -> anyhow::Result<MembersResponse> {
        self.ask("asking for the members", |client| async move {
            client.members().await
        })
        .await
        .context("no leader answered; see `dengine admin status` for what each member says")
    }

    /// The same, if there is a leader now: each endpoint is asked once.
    pub(super) async fn members_now(&self) -> Option<MembersResponse> {
        for endpoint in &self.endpoints {
            let asked = async {
                let client = AdminClient::connect_with(endpoint, self.patient())
                    .await
                    .ok()?;
                client.members().await.ok()
            };
            if let Some(members) = asked.await {
                return Some(members);
            }
        }
        None
    }

    /// Where every member answers for itself: those of `members`, or else the endpoints.
    pub(super) fn places(&self, members: Option<&MembersResponse>) -> Vec<Place> {
        let listed = members.into_iter().flat_map(|it| &it.members);
        let listed = listed.filter_map(|it| it.member.clone());
        let places: Vec<_> = listed
            .map(|it| Place {
                address: it.client_address.clone(),
                member: Some(it),
                client: None,
            })
            .collect();
        if !places.is_empty() {
            return places;
        }
        let named = self.endpoints.iter().map(|it| Place {
            address: it.clone(),
            member: None,
            client: None,
        });
        named.collect()
    }

    /// The same for calls that the port of clients refuses. A member may serve them where only
    /// those on its machine reach it, which it tells nobody: whoever named that endpoint is there.
    pub(super) async fn admin_places(&self, members: Option<&MembersResponse>) -> Vec<Place> {
        let mut places = self.places(members);
        let Some(cluster) = members.map(|it| it.cluster_id) else {
            return places;
        };
        let named = join_all(self.endpoints.iter().map(|it| self.introduced(it))).await;
        for (endpoint, client, status) in named.into_iter().flatten() {
            let of_it = |place: &&mut Place| {
                let id = place.member.as_ref().map(|it| it.id);
                id == Some(status.member_id) && status.cluster_id == cluster
            };
            // Its address for clients, if that is what was named, is known already.
            if let Some(place) = places.iter_mut().find(of_it)
                && place.client.is_none()
                && place.address != *endpoint
            {
                place.address.clone_from(endpoint);
                place.client = Some(client);
            }
        }
        places
    }

    /// Who answers at an endpoint. The connection stays with that one: the next may lead to
    /// another, as behind a Service.
    async fn introduced<'a>(
        &self,
        endpoint: &'a String,
    ) -> Option<(&'a String, AdminClient, StatusResponse)> {
        let options = AdminOptions {
            request_timeout: self.time_left(),
            ..self.options
        };
        let patience = (self.time_left() / 4).min(NAMED_PATIENCE);
        let asked = async {
            let client = AdminClient::connect_with(endpoint, options).await.ok()?;
            let status = client.status().await.ok()?;
            Some((endpoint, client, status))
        };
        timeout(patience, asked).await.ok().flatten()
    }

    /// Asks every member for itself, all at once.
    pub(super) async fn ask_each<T, F>(
        &self,
        places: Vec<Place>,
        patience: Duration,
        ask: impl Fn(AdminClient) -> F + Copy,
    ) -> Vec<Asked<T>>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let options = AdminOptions {
            // A timeout of zero is no valid option.
            request_timeout: patience.max(Duration::from_millis(1)),
            ..self.options
        };
        let asking = places.into_iter().map(|place| async move {
            let Place {
                address,
                member,
                client,
            } = place;
            let connected = match client {
                Some(client) => Ok(client),
                None => AdminClient::connect_with(&address, options).await,
            };
            let answer = match connected {
                Ok(client) => ask(client).await,
                Err(error) => Err(error),
            };
            Asked {
                address,
                member,
                answer,
            }
        });
        join_all(asking).await
    }

    /// A client of one member that is not in the list yet.
    pub(super) async fn newcomer(&self, address: &str) -> anyhow::Result<AdminClient> {
        AdminClient::connect_with(address, self.options)
            .await
            .with_context(|| {
                format!("{address} does not answer; is `dengine serve` running there?")
            })
    }

    /// What is left of the time for the command.
    pub(super) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// How long one member of several is waited for.
    pub(super) fn member_patience(&self) -> Duration {
        // A timeout of zero is no valid option.
        self.time_left()
            .clamp(Duration::from_millis(1), MEMBER_PATIENCE)
    }

    fn patient(&self) -> AdminOptions {
        AdminOptions {
            request_timeout: self.member_patience(),
            ..self.options
        }
    }
}
