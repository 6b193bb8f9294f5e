//! Connections to the members' Admin service, by pod address. Pod addresses come from the Pod object,
//! so nothing waits for DNS; every call has a short end.

use std::collections::HashMap;
use std::time::Duration;

use dengine_api::{ports, v1};
use dengine_client::{AdminClient, AdminOptions, Error};
use tokio::sync::Mutex;
use tokio::time::timeout;

const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Membership changes wait for a quorum.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Looking must not hold up everything else when a member hangs.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections that are kept. Addresses of pods that are gone stay until then; starting over is cheap.
const CONNECTIONS_MAX: usize = 1024;

/// Connections that were used lately.
#[derive(Debug, Default)]
pub struct Members {
    connections: Mutex<HashMap<String, AdminClient>>,
}

impl Members {
    /// What the member at this address says of itself; `None` if it does not answer in time.
    pub async fn status(&self, ip: &str) -> Option<v1::StatusResponse> {
        let client = self.client(ip).await.ok()?;
        match timeout(LOOK_TIMEOUT, client.status()).await {
            Ok(Ok(status)) => Some(status),
            _ => {
                self.forget(ip).await;
                None
            }
        }
    }

    /// The member list, confirmed by a quorum; `None` if none answers through this member.
    pub async fn members(&self, ip: &str) -> Option<v1::MembersResponse> {
        let client = self.client(ip).await.ok()?;
        timeout(LOOK_TIMEOUT, client.members()).await.ok()?.ok()
    }

    /// A connection for one change.
    ///
    /// # Errors
    /// If the member can not be reached.
    pub async fn client(&self, ip: &str) -> Result<AdminClient, Error> {
        if let Some(client) = self.connections.lock().await.get(ip) {
            return Ok(client.clone());
        }
        let options = AdminOptions {
            connect_timeout: CONNECT_TIMEOUT,
            request_timeout: CHANGE_TIMEOUT,
        };
        let client = AdminClient::connect_with(&address(ip), options).await?;
        let mut connections = self.connections.lock().await;
        if connections.len() >= CONNECTIONS_MAX {
            connections.clear();
        }
        connections.insert(ip.to_owned(), client.clone());
        Ok(client)
    }

    /// Drops the connection, so that the next call makes a new one.
    pub async fn forget(&self, ip: &str) {
        self.connections.lock().await.remove(ip);
    }
}

fn address(ip: &str) -> String {
    if ip.contains(':') {
        format!("[{ip}]:{}", ports::CLIENT)
    } else {
        format!("{ip}:{}", ports::CLIENT)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn addresses_of_both_families() {
        assert_eq!(super::address("10.0.0.1"), "10.0.0.1:4100");
        assert_eq!(super::address("fd00::1"), "[fd00::1]:4100");
    }
}
