// SPDX-License-Identifier: Apache-2.0
//! Requests to the Hub and to the hosts that it redirects to.

use crate::failure::Failure;
use std::time::Duration;
use ureq::http::header::{HeaderMap, AUTHORIZATION, LOCATION, RANGE};
use ureq::http::{Method, Request, Uri};
use ureq::{Agent, Body};

const MAX_REDIRECTS: u32 = 10;

/// Scheme, host and port of a URL. The token is sent only to the origin of the endpoint.
#[derive(PartialEq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let usual = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        Some(Origin {
            scheme,
            host: uri.host()?.to_ascii_lowercase(),
            port: uri.port_u16().unwrap_or(usual),
        })
    }
}

/// Resolves a `Location` header: an absolute URL, or a path on the same host. None for a redirect from https to http.
fn follow(from: &Uri, location: &str) -> Option<Uri> {
    let scheme = from.scheme_str()?;
    let to: Uri = if location.starts_with("//") {
        format!("{scheme}:{location}").parse().ok()?
    } else if location.starts_with('/') {
        format!("{scheme}://{}{location}", from.authority()?)
            .parse()
            .ok()?
    } else {
        location.parse().ok()?
    };
    let origin = Origin::of(&to)?;
    (origin.scheme == "https" || scheme == "http").then_some(to)
}

/// Which redirects a request follows.
#[derive(Clone, Copy, PartialEq)]
pub enum Follow {
    /// Only those within the Hub's own host. A redirect to another host is returned as the response.
    Hub,
    All,
}

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// Headers of the last response from the Hub itself. They describe the file.
    pub hub_headers: HeaderMap,
    pub body: Body,
}

pub struct Client {
    agent: Agent,
    endpoint: String,
    hub: Origin,
    token: String,
    stall: Duration,
}

impl Client {
    /// `token`: empty for none. `stall`: time-out of a host that sends nothing.
    pub fn new(endpoint: &str, token: &str, stall: Duration) -> Result<Self, Failure> {
        let endpoint = endpoint.trim_end_matches('/').to_string();
        let hub = endpoint
            .parse()
            .ok()
            .and_then(|uri| Origin::of(&uri))
            .ok_or_else(|| Failure::Final(format!("the Hub's address '{endpoint}' is no URL")))?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("warprow/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(stall))
            .timeout_connect(Some(stall))
            .timeout_recv_response(Some(stall))
            .timeout_per_read(Some(stall))
            .timeout_per_write(Some(stall))
            .build();
        Ok(Client {
            agent: config.new_agent(),
            endpoint,
            hub,
            token: token.to_string(),
            stall,
        })
    }

    /// Converts a network error to a Failure.
    pub fn failure(&self, error: ureq::Error) -> Failure {
        Failure::Passing(match error {
            ureq::Error::Timeout(_) => format!(
                "nothing came for {} s (HF_HUB_DOWNLOAD_TIMEOUT)",
                self.stall.as_secs_f64()
            ),
            error => error.to_string(),
        })
    }

    /// Sends a request to a path of the Hub. `from`: the first byte of the requested range.
    pub fn send(
        &self,
        method: Method,
        path: &str,
        from: u64,
        redirects: Follow,
    ) -> Result<Answer, Failure> {
        let mut uri: Uri = format!("{}{path}", self.endpoint)
            .parse()
            .map_err(|error| Failure::Final(format!("'{path}': {error}")))?;
        let mut hub_headers = HeaderMap::new();
        for _ in 0..=MAX_REDIRECTS {
            let at_hub = Origin::of(&uri).as_ref() == Some(&self.hub);
            let mut request = Request::builder().method(method.clone()).uri(&uri);
            if at_hub && !self.token.is_empty() {
                request = request.header(AUTHORIZATION, format!("Bearer {}", self.token));
            }
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            let request = request
                .body(())
                .map_err(|_| Failure::Final("the token is no text of one line".to_string()))?;
            let answer = self
                .agent
                .run(request)
                .map_err(|error| self.failure(error))?;
            let (head, body) = answer.into_parts();
            if at_hub {
                hub_headers = head.headers.clone();
            }
            let next = match redirect(&head.headers, head.status.as_u16()) {
                Some(location) => Some(follow(&uri, location).ok_or_else(|| {
                    Failure::Final(format!("{} redirects to '{location}'", host_of(&uri)))
                })?),
                None => None,
            };
            match next {
                Some(to)
                    if redirects == Follow::All || Origin::of(&to).as_ref() == Some(&self.hub) =>
                {
                    uri = to;
                }
                _ => {
                    return Ok(Answer {
                        status: head.status.as_u16(),
                        headers: head.headers,
                        hub_headers,
                        body,
                    })
                }
            }
        }
        Err(Failure::Final(format!(
            "more than {MAX_REDIRECTS} redirects"
        )))
    }
}

fn host_of(uri: &Uri) -> &str {
    uri.host().unwrap_or_default()
}

fn redirect(headers: &HeaderMap, status: u16) -> Option<&str> {
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    headers.get(LOCATION)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn led(from: &str, location: &str) -> Option<String> {
        follow(&from.parse().unwrap(), location).map(|uri| uri.to_string())
    }

    #[test]
    fn redirects_are_resolved_and_never_leave_https() {
        let from = "https://hub.example:8443/a/b?c=d";
        assert_eq!(
            led(from, "/x?y=z").unwrap(),
            "https://hub.example:8443/x?y=z"
        );
        assert_eq!(
            led(from, "//cdn.example/x").unwrap(),
            "https://cdn.example/x"
        );
        assert_eq!(
            led(from, "https://cdn.example/x").unwrap(),
            "https://cdn.example/x"
        );
        assert_eq!(
            led("http://hub.example/", "https://cdn.example/").unwrap(),
            "https://cdn.example/"
        );
        for location in [
            "http://hub.example:8443/x",
            "ftp://hub.example/x",
            "x",
            "",
            "file:///etc/passwd",
        ] {
            assert_eq!(led(from, location), None, "{location}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |text: &str| Origin::of(&text.parse().unwrap()).unwrap();
        let hub = origin("https://hub.example/");
        assert!(origin("HTTPS://HUB.example:443/x") == hub);
        for other in [
            "http://hub.example/",
            "https://hub.example:8443/",
            "https://hub.example.evil.example/",
            "https://hub.example@evil.example/",
            "https://cdn.hub.example/",
        ] {
            assert!(origin(other) != hub, "{other}");
        }
    }
}
