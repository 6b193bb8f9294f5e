//! A fake API server that stores objects and records requests. Implements as much of Kubernetes as
//! the operator needs.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

#[derive(Default)]
pub(crate) struct ApiServer {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    requests: Vec<String>,
    version: u64,
    /// Text in the path, code and message of refused requests.
    refused: Option<(String, u16, String)>,
    /// Reads are refused too.
    unread: bool,
    webhook: Option<(String, Value)>,
    /// Fields of a cluster's replacements that are dropped.
    unknown: Vec<String>,
    /// Types of the conditions that each manager applied, by the path of the object.
    applied: BTreeMap<(String, String), BTreeSet<String>>,
}

impl ApiServer {
    /// A client of this server.
    pub(crate) fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "test")
    }

    /// `METHOD PATH` of every request so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Objects whose paths contain this text.
    pub(crate) fn list<K: DeserializeOwned>(&self, within: &str) -> Vec<K> {
        let state = self.state.lock().unwrap();
        let found = state
            .objects
            .iter()
            .filter(|(path, _)| path.contains(within));
        found
            .map(|(_, object)| serde_json::from_value(object.clone()).unwrap())
            .collect()
    }

    /// Paths that contain this text.
    pub(crate) fn paths(&self, within: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let paths = state.objects.keys().filter(|path| path.contains(within));
        paths.cloned().collect()
    }

    /// Writes an object as another client does.
    pub(crate) fn put(&self, path: &str, object: Value) {
        let mut state = self.state.lock().unwrap();
        state.write(path, object);
    }

    /// Deletes an object as another client does.
    pub(crate) fn remove(&self, path: &str) {
        self.state.lock().unwrap().objects.remove(path);
    }

    /// Refuses writes with this text in their path and query with 422 and this message.
    pub(crate) fn refuse(&self, within: &str, message: &str) {
        let mut state = self.state.lock().unwrap();
        state.refused = Some((within.to_owned(), 422, message.to_owned()));
    }

    /// Refuses writes of paths with this text with 403.
    pub(crate) fn forbid(&self, within: &str) {
        let mut state = self.state.lock().unwrap();
        state.refused = Some((within.to_owned(), 403, "forbidden".to_owned()));
    }

    /// The same for reads too.
    pub(crate) fn forbid_all(&self, within: &str) {
        self.forbid(within);
        self.state.lock().unwrap().unread = true;
    }

    pub(crate) fn allow(&self) {
        let mut state = self.state.lock().unwrap();
        (state.refused, state.unread) = (None, false);
    }

    /// Drops these fields of a cluster's replacements from what is written.
    pub(crate) fn prune(&self, fields: &[&str]) {
        let mut state = self.state.lock().unwrap();
        state.unknown = fields.iter().map(|&field| field.to_owned()).collect();
    }

    /// Merges this patch into everything written to paths with this text, as a webhook does.
    pub(crate) fn change(&self, within: &str, patch: Value) {
        let mut state = self.state.lock().unwrap();
        state.webhook = Some((within.to_owned(), patch));
    }

    /// The response to a request.
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let kind = request.headers().get("content-type");
        let applies =
            kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/apply-patch"));
        let query = request.uri().query().unwrap_or_default().to_owned();
        let body = request.into_body().collect_bytes().await.unwrap();
        let mut body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut state = self.state.lock().unwrap();
        if applies {
            let mut parameters = query.split('&');
            let manager = parameters.find_map(|one| one.strip_prefix("fieldManager="));
            state.merge_conditions(&path, manager.unwrap(), &mut body);
        }
        let (code, answer) = state.answer(&method, &path, &query, body);
        drop(state);
        let response = Response::builder().status(code);
        let answer = Body::from(answer.to_string().into_bytes());
        response.body(answer).unwrap()
    }
}

impl State {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: Value) -> (u16, Value) {
        self.requests.push(format!("{method} {path}"));
        let asked = format!("{path}?{}", query.trim_start_matches('&'));
        let path = path.strip_suffix("/status").unwrap_or(path);
        let is_write = ![Method::GET, Method::POST].contains(method);
        if let Some((within, code, message)) = &self.refused
            && (is_write || self.unread)
            && asked.contains(within)
        {
            return failure(*code, "Refused", message);
        }
        if *method == Method::GET {
            return match self.objects.get(path) {
                Some(object) => (200, object.clone()),
                None if path.ends_with("/events") => (200, self.list("EventList", path, query)),
                None if path.ends_with("/pods") => (200, self.list("PodList", path, query)),
                None if path.ends_with("/persistentvolumes") => {
                    (200, self.list("PersistentVolumeList", path, query))
                }
                None => failure(404, "NotFound", "not found"),
            };
        }
        if *method == Method::POST {
            return (201, body);
        }
        if *method == Method::DELETE {
            return match self.objects.remove(path) {
                Some(object) => (200, object),
                None => failure(404, "NotFound", "not found"),
            };
        }
        let there = &self.objects.get(path).cloned().unwrap_or_default();
        let (read, now) = (
            &body["metadata"]["resourceVersion"],
            &there["metadata"]["resourceVersion"],
        );
        if !read.is_null() && read != now {
            return failure(409, "Conflict", "somebody wrote it since");
        }
        let written = self.write(path, body);
        (200, written)
    }

    fn list(&self, kind: &str, path: &str, query: &str) -> Value {
        let below = format!("{path}/");
        let found = self.objects.range(below.clone()..);
        let found = found.take_while(|(path, _)| path.starts_with(&below));
        let selected = found.filter(|(_, object)| is_selected(object, query));
        let items: Vec<&Value> = selected.map(|(_, object)| object).collect();
        json!({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items})
    }

    /// Conditions are a map by type; each manager owns those that it applied.
    fn merge_conditions(&mut self, path: &str, manager: &str, body: &mut Value) {
        let Some(path) = path.strip_suffix("/status") else {
            return;
        };
        let type_of = |condition: &Value| condition["type"].as_str().unwrap().to_owned();
        let list = |object: &Value| -> Vec<Value> {
            let list = object["status"]["conditions"].as_array();
            list.cloned().unwrap_or_default()
        };
        let (now, mut merged) = (list(body), list(self.objects.get(path).unwrap()));
        let place = (path.to_owned(), manager.to_owned());
        let types: BTreeSet<String> = now.iter().map(type_of).collect();
        let before = self.applied.insert(place, types).unwrap_or_default();
        let of_this = self.applied.iter().filter(|((of, _), _)| of == path);
        let applied: BTreeSet<&String> = of_this.flat_map(|(_, types)| types).collect();
        merged.retain(|one| !before.contains(&type_of(one)) || applied.contains(&type_of(one)));
        for condition in now {
            let there = merged
                .iter()
                .position(|one| type_of(one) == type_of(&condition));
            match there {
                Some(place) => merged[place] = condition,
                None => merged.push(condition),
            }
        }
        body["status"]["conditions"] = merged.into();
    }

    fn write(&mut self, path: &str, patch: Value) -> Value {
        self.version += 1;
        let version = self.version;
        let object = self.objects.entry(path.to_owned()).or_default();
        let spec = object["spec"].clone();
        merge(object, patch);
        if let Some((within, patch)) = &self.webhook
            && path.contains(within)
        {
            merge(object, patch.clone());
        }
        let replacements = object.pointer_mut("/status/replacements");
        for one in replacements
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let fields = one.as_object_mut().unwrap();
            fields.retain(|name, _| !self.unknown.contains(name));
        }
        let changed = object["spec"] != spec;
        let meta = &mut object["metadata"];
        if meta["uid"].is_null() {
            meta["uid"] = format!("uid of {path}").into();
        }
        meta["resourceVersion"] = version.to_string().into();
        let generation = meta["generation"].as_u64().unwrap_or(0);
        meta["generation"] = (generation + u64::from(changed)).into();
        object.clone()
    }
}

/// By fields; label selectors are ignored.
fn is_selected(object: &Value, query: &str) -> bool {
    let mut parameters = query.split('&');
    let selector = parameters.find_map(|one| one.strip_prefix("fieldSelector="));
    let selector = selector.map(unescaped).unwrap_or_default();
    let mut fields = selector.split(',').filter_map(|one| one.split_once('='));
    fields.all(|(field, value)| {
        let place = format!("/{}", field.replace('.', "/"));
        object.pointer(&place).and_then(Value::as_str) == Some(value)
    })
}

/// A decoded query parameter.
fn unescaped(text: &str) -> String {
    let text = text.replace('+', " ");
    let mut parts = text.split('%');
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |whole, part| {
        let (code, rest) = part.split_at(2);
        let letter = char::from(u8::from_str_radix(code, 16).unwrap());
        format!("{whole}{letter}{rest}")
    })
}

/// As a JSON merge patch (RFC 7386).
fn merge(object: &mut Value, patch: Value) {
    match patch {
        Value::Object(fields) => {
            if !object.is_object() {
                *object = json!({});
            }
            for (key, value) in fields {
                if value.is_null() {
                    object.as_object_mut().unwrap().remove(&key);
                } else {
                    merge(&mut object[&key], value);
                }
            }
        }
        other => *object = other,
    }
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (code, status)
}
