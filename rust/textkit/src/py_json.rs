// SPDX-License-Identifier: Apache-2.0
//! Formats values as Python does: json.dumps for the tojson filter, str() for a template's output.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

pub struct DumpOptions {
    pub indent: Option<String>, // one level, already as text
    pub item_separator: String,
    pub key_separator: String,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
}

/// json.dumps(value, ...)
pub fn dumps(value: &Value, options: &DumpOptions) -> Result<String, Error> {
    let mut out = String::new();
    dump(value, options, 0, &mut out)?;
    Ok(out)
}

fn dump(value: &Value, o: &DumpOptions, depth: usize, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(value, ["NaN", "Infinity", "-Infinity"], out),
        ValueKind::String => {
            write_json_string(value.as_str().unwrap_or_default(), o.ensure_ascii, out)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_items(('[', ']'), items.len(), o, depth, out, |i, out| {
                dump(&items[i], o, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                pairs.push((json_key(&key)?, item));
            }
            if o.sort_keys {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            write_items(('{', '}'), pairs.len(), o, depth, out, |i, out| {
                write_json_string(&pairs[i].0, o.ensure_ascii, out);
                out.push_str(&o.key_separator);
                dump(&pairs[i].1, o, depth + 1, out)
            })?;
        }
        kind => {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                format!("{kind} is not JSON serializable"),
            ));
        }
    }
    Ok(())
}

fn write_items(
    brackets: (char, char),
    count: usize,
    o: &DumpOptions,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = &o.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(brackets.0);
    for i in 0..count {
        if i > 0 {
            out.push_str(&o.item_separator);
        }
        new_line(depth + 1, out);
        write(i, out)?;
    }
    if count > 0 {
        new_line(depth, out);
    }
    out.push(brackets.1);
    Ok(())
}

fn json_key(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_string(),
        ValueKind::None => "null".into(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number => {
            let mut s = String::new();
            write_number(key, ["NaN", "Infinity", "-Infinity"], &mut s);
            s
        }
        kind => {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                format!("a {kind} cannot be a JSON key"),
            ))
        }
    })
}

fn write_json_string(s: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ensure_ascii && c as u32 > 0x7e) => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn write_number(value: &Value, specials: [&str; 3], out: &mut String) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return;
    }
    let f = f64::try_from(value.clone()).unwrap_or(f64::NAN);
    if f.is_nan() {
        out.push_str(specials[0]);
    } else if f.is_infinite() {
        out.push_str(specials[if f > 0.0 { 1 } else { 2 }]);
    } else {
        write_float(f, out);
    }
}

/// repr() of a float: the shortest digits that parse to the same value, with an exponent below 1e-4 and from 1e16 on.
fn write_float(f: f64, out: &mut String) {
    if f == 0.0 || (1e-4..1e16).contains(&f.abs()) {
        let _ = write!(out, "{f:?}");
        return;
    }
    let text = format!("{f:e}"); // 1.5e-7
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    let _ = write!(out, "{mantissa}e{sign}{:02}", exponent.abs());
}

/// str(value); an undefined value prints nothing.
pub fn py_str(value: &Value) -> String {
    let mut out = String::new();
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        _ => repr(value, &mut out),
    }
    out
}

fn repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::Number => write_number(value, ["nan", "inf", "-inf"], out),
        ValueKind::String => repr_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                repr(&item, out);
            }
            out.push(']');
        }
        ValueKind::Map
            if value
                .as_object()
                .is_some_and(|o| o.try_iter_pairs().is_some()) =>
        {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                repr(&key, out);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), out);
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}"); // True, False, None, objects of the engine
        }
    }
}

fn repr_string(s: &str, out: &mut String) {
    let quote = if s.contains('\'') && !s.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || (0x7f..0xa0).contains(&(c as u32)) => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(f: f64) -> String {
        let mut s = String::new();
        write_float(f, &mut s);
        s
    }

    #[test]
    fn floats_as_python_writes_them() {
        assert_eq!(float(1.0), "1.0");
        assert_eq!(float(0.1), "0.1");
        assert_eq!(float(1e-5), "1e-05");
        assert_eq!(float(1.5e-7), "1.5e-07");
        assert_eq!(float(1e16), "1e+16");
        assert_eq!(float(123456789.25), "123456789.25");
        assert_eq!(float(-0.0), "-0.0");
    }

    #[test]
    fn values_print_as_in_python() {
        let v = Value::from_serialize(serde_json::json!({"a": [1, null, true], "b": "it's"}));
        assert_eq!(py_str(&v), "{'a': [1, None, True], 'b': \"it's\"}");
    }
}
