//! `dengine init`: forms waiting members into a cluster.
//!
//! Nothing is remembered between runs; each looks at what the members say and does what is missing.
//! Every endpoint must answer before anything is changed, so that no existing cluster is
//! overlooked.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use dengine_client::{AdminClient, Error};
use dengine_protocol::v1::{
    AddLearnerRequest, BootstrapRequest, JoinRequest, Lifecycle, Member, MemberProgress,
    StatusResponse,
};
use dengine_types::NUMBER_MAX;
use tokio::time::{Instant, sleep, timeout_at};

use super::{ENDPOINTS_VARIABLE, EXIT_OK, say};

/// Pause before something is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long a member whose name somebody else has may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What `dengine init` takes.
#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Admin addresses of all members, comma-separated; the first one bootstraps the cluster.
    /// Client addresses work too if the admin addresses that the members advertise can be reached
    /// from here.
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        required = true,
        env = ENDPOINTS_VARIABLE
    )]
    endpoints: Vec<String>,

    /// The revision of the empty store, for a cluster that takes the place of another one whose
    /// clients remember its revisions: at least two above all of them, better a round number far
    /// above. Earlier ones are answered as compacted.
    /// With another one than 1, no member can ever run a release that does not know this flag.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = revision())]
    first_revision: u64,

    /// Longest time for the whole command, as in 30s or 2m.
    #[arg(long, default_value = "1m", value_parser = dengine_commands::time_limit)]
    timeout: Duration,
}

/// Forms the cluster, or finds that it is formed.
pub(super) fn run(args: InitArgs) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let deadline = Instant::now() + args.timeout;
    runtime.block_on(async {
        let mut init = Init::reach(args.endpoints, deadline).await?;
        let cluster_id = init.bootstrap(args.first_revision).await?;
        init.gather(cluster_id).await?;
        init.report(cluster_id).await
    })?;
    Ok(EXIT_OK)
}

fn revision() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(1..=NUMBER_MAX)
}

struct Init {
    members: Vec<Reached>,
    deadline: Instant,
}

/// A member that answered.
struct Reached {
    endpoint: String,
    client: AdminClient,
    status: StatusResponse,
}

impl Init {
    async fn reach(endpoints: Vec<String>, deadline: Instant) -> anyhow::Result<Self> {
        let mut members: Vec<Reached> = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let reached = retried(deadline, &format!("waiting for {endpoint}"), || async {
                let client = AdminClient::connect(&endpoint).await?;
                let status = client.status().await?;
                Ok(Reached {
                    endpoint: endpoint.clone(),
                    client,
                    status,
                })
            })
            .await?;
            let twin = members
                .iter()
                .find(|it| it.status.folder_id == reached.status.folder_id);
            if let Some(twin) = twin {
                bail!(
                    "{} and {} are the same member: name each once",
                    twin.endpoint,
                    endpoint
                );
            }
            say(&format!("{endpoint}: {}", describe(&reached.status)));
            members.push(reached);
        }
        Ok(Self { members, deadline })
    }

    /// The cluster that the members belong to; if there is none, the first begins it.
    async fn bootstrap(&mut self, first_revision: u64) -> anyhow::Result<u64> {
        let mut known: Vec<_> = self
            .members
            .iter()
            .map(|it| it.status.cluster_id)
            .filter(|id| *id != 0)
            .collect();
        known.sort_unstable();
        known.dedup();
        match known[..] {
            [] => {}
            [cluster_id] => {
                if first_revision != 1 {
                    self.check_first_revision(cluster_id, first_revision)
                        .await?;
                }
                say(&format!("cluster {cluster_id}: exists already"));
                return Ok(cluster_id);
            }
            _ => {
                bail!("these members belong to different clusters ({known:?}); nothing was changed")
            }
        }
        let cluster_id = rand::random_range(1..=u64::MAX);
        let first = &mut self.members[0];
        let folder_id = first.status.folder_id.clone();
        let request = BootstrapRequest {
            cluster_id,
            folder_id,
            first_revision,
        };
        let begun = first
            .client
            .bootstrap_with(request)
            .await
            .with_context(|| format!("{} could not begin a cluster", first.endpoint))?;
        ensure!(
            begun.first_revision.max(1) == first_revision,
            "{} has begun cluster {cluster_id} at revision 1, for its release does not know \
             --first-revision: upgrade it, and begin again with an empty --data-dir",
            first.endpoint
        );
        first.status.cluster_id = cluster_id;
        say(&format!(
            "cluster {cluster_id}: bootstrapped by {}",
            first.endpoint
        ));
        Ok(cluster_id)
    }

    /// Whether a cluster that exists began at this revision: so did one that an earlier call of
    /// this command began and could not complete.
    async fn check_first_revision(
        &self,
        cluster_id: u64,
        first_revision: u64,
    ) -> anyhow::Result<()> {
        let unknown = || {
            format!(
                "cluster {cluster_id} exists already, and is not known to have begun at revision \
                 {first_revision}: leave --first-revision out, for that can't be changed"
            )
        };
        // Ids count from 1.
        let began = |it: &&Reached| it.status.cluster_id == cluster_id && it.status.member_id == 1;
        let first = self.members.iter().find(began);
        let first = first.with_context(unknown)?;
        // Answered in the same way again, unless the cluster began at another one.
        let again = BootstrapRequest {
            cluster_id,
            folder_id: first.status.folder_id.clone(),
            first_revision,
        };
        let begun = first.client.bootstrap_with(again).await;
        let begun = begun.with_context(unknown)?;
        ensure!(begun.first_revision == first_revision, unknown());
        Ok(())
    }

    /// Makes everyone a voter, one after the other, so that a quorum is never in doubt.
    async fn gather(&mut self, cluster_id: u64) -> anyhow::Result<()> {
        for place in 0..self.members.len() {
            let known = self.progress(cluster_id).await?;
            let Reached {
                endpoint, status, ..
            } = &self.members[place];
            let (endpoint, status) = (endpoint.clone(), status.clone());
            let found = listed(&known)
                .find(|(it, _)| it.folder_id == status.folder_id)
                .map(|(member, _)| member.clone());
            let member = match found {
                Some(member) => member,
                None => self.add(&endpoint, &status, &known).await?,
            };
            if status.cluster_id == 0 {
                self.join(place, cluster_id, &member).await?;
            }
            if !member.voter {
                self.promote(&endpoint, member.id).await?;
            }
        }
        Ok(())
    }

    async fn add(
        &mut self,
        endpoint: &str,
        status: &StatusResponse,
        known: &[MemberProgress],
    ) -> anyhow::Result<Member> {
        if status.cluster_id != 0 {
            bail!(
                "{endpoint} was member {} of this cluster and has been removed; its data \
                 directory cannot rejoin: start it with an empty --data-dir",
                status.member_id
            );
        }
        if let Some((owner, reachable)) = listed(known).find(|(it, _)| it.name == status.name) {
            let answers = self.answers(owner, reachable).await;
            bail!(name_taken(endpoint, owner, answers));
        }
        let request = AddLearnerRequest {
            name: status.name.clone(),
            peer_address: status.peer_address.clone(),
            client_address: status.client_address.clone(),
            folder_id: status.folder_id.clone(),
        };
        let response = self
            .ask_cluster(&format!("adding {endpoint}"), |client| {
                let request = request.clone();
                async move { client.add_learner(request).await }
            })
            .await?;
        let member = response
            .member
            .context("the cluster did not say whom it added")?;
        say(&format!("{endpoint}: added as learner {}", member.id));
        Ok(member)
    }

    async fn join(&mut self, place: usize, cluster_id: u64, member: &Member) -> anyhow::Result<()> {
        let deadline = self.deadline;
        let newcomer = &mut self.members[place];
        let request = JoinRequest {
            cluster_id,
            member_id: member.id,
            folder_id: newcomer.status.folder_id.clone(),
        };
        let client = newcomer.client.clone();
        retried(deadline, &format!("joining {}", newcomer.endpoint), || {
            let (client, request) = (client.clone(), request.clone());
            async move { client.join(request).await }
        })
        .await?;
        newcomer.status.cluster_id = cluster_id;
        say(&format!(
            "{}: joined as member {}",
            newcomer.endpoint, member.id
        ));
        Ok(())
    }

    async fn promote(&mut self, endpoint: &str, id: u64) -> anyhow::Result<()> {
        self.ask_cluster(
            &format!("waiting for {endpoint} to catch up"),
            |client| async move {
                match client.promote(id).await {
                    // Not caught up yet, which the error says in words for a person.
                    Err(Error::Refused { message, .. }) => Err(Error::Unavailable {
                        message,
                        leader: None,
                    }),
                    other => other,
                }
            },
        )
        .await?;
        say(&format!("{endpoint}: promoted to voter"));
        Ok(())
    }

    /// Whether a member answers with the folder id that the cluster has for it. If its address does
    /// not say, as where it can't be reached from here, the leader does: it may have heard from one
    /// that has gone just now.
    async fn answers(&self, member: &Member, reachable: bool) -> bool {
        let folder_of = |status: &StatusResponse| status.folder_id == member.folder_id;
        if self.members.iter().any(|it| folder_of(&it.status)) {
            return true;
        }
        let asked = async {
            let client = AdminClient::connect(&member.client_address).await?;
            client.status().await
        };
        let until = self.deadline.min(Instant::now() + ANSWER_TIMEOUT);
        match timeout_at(until, asked).await {
            Ok(Ok(status)) => folder_of(&status),
            Ok(Err(_)) | Err(_) => reachable,
        }
    }

    async fn progress(&self, cluster_id: u64) -> anyhow::Result<Vec<MemberProgress>> {
        let response = self
            .ask_cluster("waiting for a leader", |client| async move {
                client.members().await
            })
            .await?;
        ensure!(
            response.cluster_id == cluster_id,
            "cluster {} answered instead of cluster {cluster_id}",
            response.cluster_id
        );
        Ok(response.members)
    }

    /// Asks the members that belong to the cluster, in turn, until one answers.
    async fn ask_cluster<T, F>(
        &self,
        what: &str,
        ask: impl Fn(AdminClient) -> F,
    ) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut belonging = self
            .members
            .iter()
            .filter(|it| it.status.cluster_id != 0)
            .cycle();
        retried(self.deadline, what, || {
            let next = belonging.next().expect("someone began the cluster");
            ask(next.client.clone())
        })
        .await
    }

    async fn report(&self, cluster_id: u64) -> anyhow::Result<()> {
        let members = self.progress(cluster_id).await?;
        say(&format!(
            "cluster {cluster_id} is ready: {} members",
            members.len()
        ));
        for MemberProgress { member, leader, .. } in members {
            let member = member.context("a member without a description")?;
            let part = match (leader, member.voter) {
                (true, _) => "leader",
                (false, true) => "voter",
                (false, false) => "learner",
            };
            say(&format!(
                "  {} {} {} {part}",
                member.id, member.name, member.client_address
            ));
        }
        Ok(())
    }
}

/// Those of the list, and whether the leader hears from them.
fn listed(members: &[MemberProgress]) -> impl Iterator<Item = (&Member, bool)> {
    members
        .iter()
        .filter_map(|it| Some((it.member.as_ref()?, it.reachable)))
}

/// Why a member can't be added whose name another one has, and what to do. To remove one that
/// serves is no advice for who mistyped a name.
fn name_taken(endpoint: &str, owner: &Member, answers: bool) -> String {
    let Member {
        id,
        name,
        client_address,
        ..
    } = owner;
    let name = format!(
        "{endpoint} has an empty data directory, but its name {name:?} belongs to member {id}"
    );
    if answers {
        format!(
            "{name}, which answers at {client_address}: start this one with a --name of its own, \
             then run this again. If it is to take the place of member {id}, stop that one and \
             remove it before (dengine admin members remove {id})"
        )
    } else {
        format!(
            "{name}, which no longer answers with its data directory: if that is lost, remove that \
             member first (dengine admin members remove {id}), then run this again"
        )
    }
}

fn describe(status: &StatusResponse) -> String {
    let what = match status.lifecycle() {
        Lifecycle::Waiting => "is not in a cluster yet".to_owned(),
        Lifecycle::Running | Lifecycle::Unspecified => {
            format!(
                "is member {} of cluster {}",
                status.member_id, status.cluster_id
            )
        }
    };
    format!("{:?} {what}", status.name)
}

/// Repeats `ask` while its error may pass and there is time. All calls made so are idempotent, so
/// one whose outcome is unknown is simply made again.
async fn retried<T, F>(
    deadline: Instant,
    what: &str,
    mut ask: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut told = false;
    loop {
        let error = match timeout_at(deadline, ask()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => bail!("{what}: no answer in time (--timeout)"),
        };
        let passes = error.retryable() || matches!(error, Error::UnknownOutcome { .. });
        if !passes || Instant::now() + RETRY_PAUSE >= deadline {
            return Err(error).with_context(|| what.to_owned());
        }
        if !told {
            say(&format!("{what}: {error}"));
            told = true;
        }
        sleep(RETRY_PAUSE).await;
    }
}
