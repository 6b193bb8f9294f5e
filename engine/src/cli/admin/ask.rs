//! Reaching the members of a cluster, by any of its addresses.

use std::{future::Future, time::Duration};

use anyhow::{Context as _, bail};
use dengine_api::v1::{Member, MembersResponse};
use dengine_client::{AdminClient, AdminOptions, Error};
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout_at};

/// Pause before something is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Longest wait for one member, so that one that is gone does not take the time of the others.
const MEMBER_PATIENCE: Duration = Duration::from_secs(5);

/// A cluster, as it was named on the command line.
pub(super) struct Cluster {
    endpoints: Vec<String>,
    deadline: Instant,
    options: AdminOptions,
}

/// A member and what came of asking it.
pub(super) struct Asked<T> {
    pub(super) address: String,
    /// From the leader's list; `None` if there is no leader to ask.
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
                Err(_) => bail!("{what}: {endpoint} gave no answer in time (--timeout-s)"),
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

    /// Asks every member for itself, all at once: those of `members`, or else the endpoints.
    pub(super) async fn ask_each<T, F>(
        &self,
        members: Option<&MembersResponse>,
        patience: Duration,
        ask: impl Fn(AdminClient) -> F + Copy,
    ) -> Vec<Asked<T>>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let listed = members.into_iter().flat_map(|it| &it.members);
        let mut places: Vec<(String, Option<Member>)> = listed
            .filter_map(|it| it.member.clone())
            .map(|it| (it.client_address.clone(), Some(it)))
            .collect();
        if places.is_empty() {
            places.extend(self.endpoints.iter().map(|it| (it.clone(), None)));
        }
        let options = AdminOptions {
            request_timeout: patience,
            ..self.patient()
        };
        let asking = places.into_iter().map(|(address, member)| async move {
            let answer = match AdminClient::connect_with(&address, options).await {
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
