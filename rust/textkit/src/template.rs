// SPDX-License-Identifier: Apache-2.0
//! Chat templates: Jinja2 with transformers' settings, on minijinja.
//!
//! A template comes with a model and may need any amount of time, memory and stack, even while it is parsed. So worker
//! processes parse and render it (worker_host.rs). This file has the code that they run.

use crate::py_json::{dumps, py_str, DumpOptions};
use crate::worker_host::{Failure, Slots, WorkerHost};
use crate::worker_main::Work;
use crate::worker_wire::{Limits, WorkKind};
use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior};
use std::borrow::Cow;
use std::time::Duration;

const NAME: &str = "chat_template";
/// Each byte of the variables raises the memory limit by this many bytes: a parsed value takes this many times the
/// bytes of its JSON.
const MEMORY_PER_BYTE: u64 = 64;
/// Limit of the template engine's instructions. Counting them makes a refusal independent of the machine.
const MAX_STEPS: u64 = 10_000_000;
const STEPS_PER_BYTE: u64 = 20;
/// Variables of this size double the time limit.
const BYTES_OF_TIME: u64 = 8 << 20;

/// wr_template_limits of textkit.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TemplateLimits {
    pub cpu_ms: u32,
    pub memory_mb: u32,
    pub output_mb: u32,
}

impl TemplateLimits {
    /// The limits for variables of this many bytes. They let messages of any length that the server accepts be
    /// rendered.
    pub fn of(&self, num_bytes: usize) -> Limits {
        let (bytes, cpu_ms) = (num_bytes as u64, u64::from(self.cpu_ms));
        Limits {
            cpu_ms: cpu_ms + cpu_ms * bytes / BYTES_OF_TIME,
            slow_ms: 0,
            memory_mb: u64::from(self.memory_mb) + (bytes * MEMORY_PER_BYTE >> 20),
        }
    }

    /// What a worker is set up with.
    pub fn setup(&self, source: &str) -> Vec<u8> {
        [&self.output_mb.to_le_bytes(), source.as_bytes()].concat()
    }
}

/// A template that is parsed and rendered in worker processes.
pub struct ChatTemplate {
    host: WorkerHost,
    limits: TemplateLimits,
}

impl ChatTemplate {
    /// Parses the template once, to find errors.
    pub fn new(source: &str, limits: TemplateLimits) -> Result<Self, Failure> {
        let slots = Slots {
            all: 4,
            max_wait: Duration::from_secs(5),
            slow: 0,
            keep_workers: true,
        };
        let setup = limits.setup(source);
        let host = WorkerHost::new(WorkKind::Template, setup, limits.of(source.len()), slots);
        host.start()?;
        Ok(ChatTemplate { host, limits })
    }

    /// `context` is a JSON object with every variable.
    pub fn render(&self, context: &[u8]) -> Result<Vec<u8>, Failure> {
        self.host.run(context, self.limits.of(context.len()))
    }
}

/// The work of a worker process for a template.
pub struct TemplateWork {
    template: ParsedTemplate,
    max_output: usize,
}

impl TemplateWork {
    pub fn new(setup: &[u8]) -> Result<Self, String> {
        let (output_mb, source) = setup.split_first_chunk().ok_or("no template")?;
        let source = std::str::from_utf8(source).map_err(|e| e.to_string())?;
        Ok(TemplateWork {
            template: ParsedTemplate::new(source)?,
            max_output: (u32::from_le_bytes(*output_mb) as usize) << 20,
        })
    }
}

impl Work for TemplateWork {
    fn answer(&self, work: &[u8]) -> Result<Vec<u8>, String> {
        self.template.render(work, self.max_output)
    }
}

struct ParsedTemplate {
    env: Environment<'static>,
}

impl ParsedTemplate {
    fn new(source: &str) -> Result<Self, String> {
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_formatter(|out, _, value| {
            out.write_str(&py_str(value))
                .map_err(|e| Error::new(ErrorKind::WriteFailure, e.to_string()))
        });
        env.set_unknown_method_callback(call_method);
        minijinja_contrib::add_to_environment(&mut env);
        env.add_filter("tojson", tojson);
        env.add_filter("string", |value: &Value| py_str(value));
        env.add_filter("from_json", from_json);
        env.add_test("sequence", is_sequence);
        env.add_test("iterable", is_sequence);
        env.add_test("number", |v: &Value| {
            matches!(v.kind(), ValueKind::Number | ValueKind::Bool)
        });
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", strftime_now);
        env.add_template_owned(NAME, prepare(source))
            .map_err(|e| describe(&e))?;
        Ok(ParsedTemplate { env })
    }

    fn render(&self, context: &[u8], max_output: usize) -> Result<Vec<u8>, String> {
        let mut env = self.env.clone();
        env.set_fuel(Some(MAX_STEPS + STEPS_PER_BYTE * context.len() as u64));
        let context: serde_json::Value =
            serde_json::from_slice(context).map_err(|e| format!("template variables: {e}"))?;
        let template = env.get_template(NAME).map_err(|e| describe(&e))?;
        let mut out = Output {
            text: Vec::new(),
            max: max_output,
        };
        let rendered = template.render_captured_to(Value::from_serialize(context), &mut out);
        match rendered.map(drop) {
            Ok(()) => Ok(out.text),
            Err(e) if e.kind() == ErrorKind::WriteFailure => {
                Err(format!("writes more than {} MiB", max_output >> 20))
            }
            Err(e) => Err(describe(&e)),
        }
    }
}

/// An output text with a size limit.
struct Output {
    text: Vec<u8>,
    max: usize,
}

impl std::io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.max - self.text.len() {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Normalises line ends to "\n", as Jinja2 does. `{% generation %}` marks the assistant's text for training. It becomes
/// a block that only opens a scope, so that the white space around it is treated as around any other tag.
fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        // Behind the opening: "{%}" is none.
        let Some(length) = tag[2..].find("%}").map(|at| at + 4) else {
            rest = tag;
            break;
        };
        let inner = tag[2..length - 2].trim_matches(['-', '+']).trim();
        match inner {
            "generation" => out.push_str(&tag[..length].replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag[..length].replacen("endgeneration", "endwith", 1)),
            _ => {
                out.push_str("{%");
                rest = &tag[2..];
                continue;
            }
        }
        rest = &tag[length..];
    }
    out.push_str(rest);
    out
}

/// The error as one line. A message from raise_exception is passed on unchanged.
fn describe(error: &Error) -> String {
    let mut root = error;
    while let Some(inner) = std::error::Error::source(root).and_then(|e| e.downcast_ref::<Error>())
    {
        root = inner;
    }
    let detail = root
        .detail()
        .map(str::to_string)
        .unwrap_or_else(|| root.kind().to_string());
    if root.kind() == ErrorKind::InvalidOperation && detail.starts_with(RAISED) {
        return match &detail[RAISED.len()..] {
            "" => "raise_exception is called with an empty message".to_string(),
            message => message.to_string(),
        };
    }
    let what = match root.detail() {
        Some(_) => format!("{}: {detail}", root.kind()),
        None => detail,
    };
    match root.line().or(error.line()) {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

const RAISED: &str = "\u{1}raised:";

fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("{RAISED}{}", py_str(message)),
    ))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let format = std::ffi::CString::new(format).map_err(|_| {
        Error::new(
            ErrorKind::InvalidOperation,
            "strftime_now: the format holds a NUL",
        )
    })?;
    let mut buffer = vec![0u8; 64 + 32 * format.as_bytes().len()];
    // SAFETY: the pointers are valid for the calls, and the buffer's size is passed with it.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut parts);
        libc::strftime(
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            format.as_ptr(),
            &parts,
        )
    };
    buffer.truncate(length);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

/// transformers' tojson: json.dumps without HTML escapes, non-ASCII kept.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let indent = match indent {
        None => None,
        Some(v) if v.is_none() || v.is_undefined() => None,
        Some(v) => Some(match v.as_str() {
            Some(s) => s.to_string(),
            None => " ".repeat(v.as_usize().unwrap_or(0)),
        }),
    };
    let separators: Option<Value> = kwargs.get("separators")?;
    let (item, key) = match separators.filter(|v| !v.is_none()) {
        Some(pair) => (
            py_str(&pair.get_item_by_index(0)?),
            py_str(&pair.get_item_by_index(1)?),
        ),
        None => (
            if indent.is_some() { "," } else { ", " }.to_string(),
            ": ".to_string(),
        ),
    };
    let options = DumpOptions {
        indent,
        item_separator: item,
        key_separator: key,
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    Ok(Value::from_safe_string(dumps(value, &options)?))
}

fn from_json(text: &str) -> Result<Value, Error> {
    let value: serde_json::Value = serde_json::from_str(text)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("from_json: {e}")))?;
    Ok(Value::from_serialize(value))
}

/// In Python a string and a mapping are sequences too, and an undefined value is an empty sequence.
fn is_sequence(v: &Value) -> bool {
    matches!(
        v.kind(),
        ValueKind::Seq
            | ValueKind::Iterable
            | ValueKind::Map
            | ValueKind::String
            | ValueKind::Undefined
    )
}

/// Python's methods that pycompat lacks, or for which it counts bytes instead of characters.
fn call_method(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(s) = value.as_str() {
        match method {
            "find" | "rfind" | "index" | "rindex" => return find(s, method, args),
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_prefix(prefix).unwrap_or(s)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_suffix(suffix).unwrap_or(s)));
            }
            "partition" | "rpartition" => {
                let (sep,): (&str,) = from_args(args)?;
                let last = method == "rpartition";
                let at = if last { s.rfind(sep) } else { s.find(sep) };
                let parts = match at {
                    Some(at) => [&s[..at], sep, &s[at + sep.len()..]],
                    None if last => ["", "", s],
                    None => [s, "", ""],
                };
                return Ok(parts.into_iter().map(Value::from).collect());
            }
            "rsplit" => return rsplit(s, args),
            "ljust" | "rjust" => {
                let (width, fill): (usize, Option<&str>) = from_args(args)?;
                let pad = fill
                    .unwrap_or(" ")
                    .repeat(width.saturating_sub(s.chars().count()));
                return Ok(Value::from(if method == "ljust" {
                    format!("{s}{pad}")
                } else {
                    format!("{pad}{s}")
                }));
            }
            "join" => {
                let (items,): (&Value,) = from_args(args)?;
                let parts: Vec<String> = items.try_iter()?.map(|v| py_str(&v)).collect();
                return Ok(Value::from(parts.join(s)));
            }
            _ => {}
        }
    } else if method == "index" && matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        let (what,): (&Value,) = from_args(args)?;
        let at = value.try_iter()?.position(|v| v == *what);
        return at
            .map(Value::from)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "value is not in the list"));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

fn find(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start): (&str, Option<i64>) = from_args(args)?;
    let count = s.chars().count() as i64;
    let start = start.map_or(0, |i| {
        if i < 0 {
            (count + i).max(0)
        } else {
            i.min(count)
        }
    });
    let from: usize = s
        .char_indices()
        .nth(start as usize)
        .map_or(s.len(), |(at, _)| at);
    let at = if method.starts_with('r') {
        s[from..].rfind(what)
    } else {
        s[from..].find(what)
    };
    match at {
        Some(at) => Ok(Value::from(s[..from + at].chars().count())),
        None if method.ends_with("index") => Err(Error::new(
            ErrorKind::InvalidOperation,
            "substring not found",
        )),
        None => Ok(Value::from(-1)),
    }
}

fn rsplit(s: &str, args: &[Value]) -> Result<Value, Error> {
    let (sep, max, _rest): (Option<Cow<'_, str>>, Option<i64>, Rest<Value>) = from_args(args)?;
    let limit = max
        .filter(|&m| m >= 0)
        .map_or(usize::MAX, |m| (m as usize).saturating_add(1));
    let parts: Vec<&str> = match &sep {
        Some(sep) => s.rsplitn(limit, sep.as_ref()).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = s.trim();
            while !rest.is_empty() && parts.len() + 1 < limit {
                let Some(at) = rest.rfind(char::is_whitespace) else {
                    break;
                };
                let width = rest[at..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[at + width..]);
                rest = rest[..at].trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
            parts
        }
    };
    Ok(parts.into_iter().rev().map(Value::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, String> {
        ParsedTemplate::new(source)?
            .render(
                br#"{"xs": [1, 2.5, null], "d": {"items": "<b>", "k": "\u00e9"}}"#,
                1 << 20,
            )
            .map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn json_as_transformers_writes_it() {
        assert_eq!(
            render("{{ d | tojson }}").unwrap(),
            r#"{"items": "<b>", "k": "é"}"#
        );
        assert_eq!(
            render("{{ xs | tojson(indent=2) }}").unwrap(),
            "[\n  1,\n  2.5,\n  null\n]"
        );
        assert_eq!(
            render("{{ d | tojson(ensure_ascii=true, separators=(',', ':')) }}").unwrap(),
            r#"{"items":"<b>","k":"\u00e9"}"#
        );
    }

    #[test]
    fn methods_win_over_keys() {
        assert_eq!(
            render("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}").unwrap(),
            "items=<b>;k=é;"
        );
    }

    #[test]
    fn generation_marks_vanish() {
        assert_eq!(
            render("a\n{%- generation %}\nb\n{%- endgeneration -%}\n c").unwrap(),
            "ab\nc".replace('\n', "")
        );
    }

    #[test]
    fn the_smallest_tags_are_read() {
        assert!(render("{%}").is_err());
        assert!(render("{%%}").is_err());
        assert_eq!(render("{%generation%}a{%endgeneration%}").unwrap(), "a");
    }

    #[test]
    fn strings_behave_as_in_python() {
        assert_eq!(
            render("{{ 'aébc'.find('b') }} {{ 'a.b.c'.rsplit('.', 1) }}").unwrap(),
            "2 ['a.b', 'c']"
        );
        assert_eq!(
            render("{{ true }} {{ none }} {{ xs }}").unwrap(),
            "True None [1, 2.5, None]"
        );
    }

    #[test]
    fn a_refusal_is_passed_on() {
        assert_eq!(
            render("{{ raise_exception('no system role') }}").unwrap_err(),
            "no system role"
        );
        assert!(!render("{{ raise_exception('') }}").unwrap_err().is_empty());
        assert!(render("{{ 1 + 'a' }}").unwrap_err().starts_with("line 1: "));
    }
}
