//! One cut: the script up to it, and what is found on each of the disks that may survive it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use dengine_client::SessionOptions;
use dengine_power_loss::{Cut, CutAt, Disk, Moment};
use dengine_testkit::Listen;

use crate::life::{End, Life};
use crate::past::Past;
use crate::script::{self, STEPS};

/// How many percent of what was not synced survive.
pub(crate) const KEPT_PERCENT: [u32; 3] = [0, 50, 100];
/// A server that starts on what survived is cut off too, at some operation up to this one.
const RELAPSE_WITHIN: u64 = 24;

/// One cut, and everything that follows.
pub(crate) struct Trial {
    replay: Replay,
    disk: Disk,
    listen: Listen,
    /// The output of all servers.
    log: PathBuf,
    past: Past,
}

impl Trial {
    pub(crate) fn new(seed: u64, cut: Option<Cut>, listen: Listen) -> Self {
        Self {
            replay: Replay { seed, cut },
            disk: Disk::new(),
            listen,
            log: log_file(),
            past: Past::new(),
        }
    }

    /// On a disk that lies.
    pub(crate) fn on(mut self, disk: Disk) -> Self {
        self.disk = disk;
        self
    }

    /// Runs it all; returns the disk as the script left it and what was promised, or what the
    /// member broke afterwards.
    ///
    /// # Panics
    /// The member broke something while it had power.
    pub(crate) async fn run(mut self) -> Result<(Disk, Past), String> {
        let disk = self.outcome().await?;
        fs_err::remove_file(&self.log).unwrap();
        Ok((disk, self.past))
    }

    async fn outcome(&mut self) -> Result<Disk, String> {
        let mut disk = std::mem::take(&mut self.disk);
        disk.set_cut(self.replay.cut);
        let mut life = Life::begin("member", disk, self.listen, &self.log);
        match self.script(&mut life).await {
            Ok(()) | Err(End::PowerLost) => {}
            Err(End::Broken(broken)) => panic!("{}", self.named("before the power went", &broken)),
        }
        let disk = life.end();
        // The first one also answers the call that was pending when the power was lost; so each has
        // its turn.
        let mut kept = KEPT_PERCENT;
        kept.rotate_left((self.salt() % 3) as usize);
        for percent in kept {
            let survivor = disk.power_loss(percent, self.salt());
            let found = self.restart(survivor, percent).await;
            found.map_err(|broken| self.named(&format!("{percent} % kept"), &broken))?;
        }
        Ok(disk)
    }

    async fn script(&mut self, life: &mut Life) -> Result<(), End> {
        let admin = life.admin().await?;
        life.bootstrap(&admin).await?;
        self.past.is_member = true;
        let plain = life.client().await?;
        let patient = life.patient_client().await?;
        let opening = Box::pin(patient.with_session(SessionOptions::default()));
        let session = match life.answer(opening).await {
            Some(Ok(session)) => session,
            Some(Err(error)) if !life.is_cut() => return Err(End::Broken(error.to_string())),
            _ => return Err(End::PowerLost),
        };
        self.past.session = Some(session.clone());
        for number in 1..=STEPS {
            let of_session = number % 2 == 1;
            let client = if of_session { &session } else { &plain };
            let step = script::step(number, self.past.now());
            let mut asked =
                tokio::spawn(script::perform(client.clone(), admin.clone(), step.clone()));
            match life.answer(&mut asked).await {
                Some(answer) => self.past.answered(step, answer.unwrap(), life.is_cut())?,
                None => {
                    self.past.unanswered(step, asked, of_session);
                    return Err(End::PowerLost);
                }
            }
        }
        Ok(())
    }

    /// Starts a server on what survived, and checks that the member lost nothing.
    async fn restart(&mut self, mut survivor: Disk, percent: u32) -> Result<(), String> {
        if percent == 50 {
            survivor.set_cut(Some(relapse(self.salt())));
        }
        let mut life = Life::begin("member", survivor, self.listen, &self.log);
        loop {
            match self.past.check(&mut life).await {
                Ok(()) => return Ok(()),
                Err(End::Broken(broken)) => return Err(broken),
                Err(End::PowerLost) => {
                    let survivor = life.end().power_loss(percent, self.salt() + 1);
                    life = Life::begin("member", survivor, self.listen, &self.log);
                }
            }
        }
    }

    fn salt(&self) -> u64 {
        self.replay.salt()
    }

    fn named(&self, when: &str, broken: &str) -> String {
        self.replay.named(when, broken, &self.log)
    }
}

/// What repeats a trial, but for the timing of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replay {
    pub(crate) seed: u64,
    /// `None`: everything runs to its end.
    pub(crate) cut: Option<Cut>,
}

impl Replay {
    /// A number that differs from trial to trial.
    pub(crate) fn salt(self) -> u64 {
        let at = match self.cut.map(|cut| cut.at) {
            None => 0,
            Some(CutAt::Sync(number)) => 2 * number,
            Some(CutAt::Change(number)) => 2 * number + 1,
        };
        self.seed.wrapping_add(at.wrapping_mul(0x9e37_79b9)) >> 1
    }

    /// What was broken, and how to repeat it.
    pub(crate) fn named(self, when: &str, broken: &str, log: &Path) -> String {
        let replay = match self.cut.map(|cut| cut.at) {
            None => String::new(),
            Some(CutAt::Sync(number)) => format!(" CUT='sync {number}'"),
            Some(CutAt::Change(number)) => format!(" CUT='change {number}'"),
        };
        let cut = self
            .cut
            .map_or_else(|| "no cut".to_owned(), |cut| format!("{cut:?}"));
        format!(
            "{cut}, {when}: {broken}; again: make power-loss SEED={}{replay}; the servers' log: {}",
            self.seed,
            log.display()
        )
    }
}

/// Where a server that starts on what survived is cut off too.
pub(crate) fn relapse(salt: u64) -> Cut {
    Cut {
        at: CutAt::Sync(1 + salt / 3 % RELAPSE_WITHIN),
        moment: Moment::Before,
    }
}

/// For the output of one trial's servers.
pub(crate) fn log_file() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let logs = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("power-loss");
    fs_err::create_dir_all(&logs).unwrap();
    logs.join(format!("{}-{number}.log", std::process::id()))
}
