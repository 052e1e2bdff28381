// SPDX-License-Identifier: Apache-2.0
//! What tokenizer_config.json and added_tokens.json say of a SentencePiece model.

use serde_json::Value;

/// An id past this limit is an error, because every id below it would take memory.
const MAX_ID: u64 = 1 << 22;

pub struct AddedToken {
    pub id: u32,
    pub text: String,
    pub special: bool,
    pub lstrip: bool,
    pub rstrip: bool,
}

pub struct SpmConfig {
    pub added: Vec<AddedToken>,
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub add_bos: bool,
    pub add_eos: bool,
    pub add_prefix_space: Option<bool>,
    /// A space is put in front of the text behind each special token, and not only at the beginning.
    pub legacy: bool,
}

impl SpmConfig {
    /// Both texts may be empty.
    pub fn parse(config: &[u8], added: &[u8]) -> Result<Self, String> {
        let config = object(config, "tokenizer_config.json")?;
        let added = object(added, "added_tokens.json")?;
        let flag = |name: &str| config.get(name).and_then(Value::as_bool);
        let mut out = SpmConfig {
            added: Vec::new(),
            bos: token_text(config.get("bos_token")),
            eos: token_text(config.get("eos_token")),
            add_bos: flag("add_bos_token").unwrap_or(true),
            add_eos: flag("add_eos_token").unwrap_or(false),
            add_prefix_space: flag("add_prefix_space"),
            legacy: flag("legacy").unwrap_or(true),
        };
        if let Some(Value::Object(tokens)) = config.get("added_tokens_decoder") {
            for (id, token) in tokens {
                let id = id.parse().ok();
                out.add("added_tokens_decoder", id, token_text(Some(token)), token)?;
            }
        }
        for (text, id) in added.as_object().into_iter().flatten() {
            if !out.added.iter().any(|token| token.text == *text) {
                out.add(
                    "added_tokens.json",
                    id.as_u64(),
                    Some(text.clone()),
                    &Value::Null,
                )?;
            }
        }
        Ok(out)
    }

    fn add(
        &mut self,
        field: &str,
        id: Option<u64>,
        text: Option<String>,
        token: &Value,
    ) -> Result<(), String> {
        let id = id.ok_or_else(|| format!("{field}: a token's id is not a number"))?;
        if id >= MAX_ID {
            return Err(format!("{field}: the id {id} is not below {MAX_ID}"));
        }
        let text = text
            .filter(|text| !text.is_empty())
            .ok_or_else(|| format!("{field}: token {id} has no content"))?;
        let flag = |name: &str| token.get(name).and_then(Value::as_bool);
        self.added.push(AddedToken {
            id: id as u32,
            text,
            special: flag("special").unwrap_or(true),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
        });
        Ok(())
    }
}

fn object(text: &[u8], name: &str) -> Result<Value, String> {
    if text.is_empty() {
        return Ok(Value::Null);
    }
    let value: Value = serde_json::from_slice(text).map_err(|e| format!("{name}: {e}"))?;
    if !value.is_object() {
        return Err(format!("{name}: not a JSON object"));
    }
    Ok(value)
}

/// A token is a text, or an object with its content.
fn token_text(token: Option<&Value>) -> Option<String> {
    let token = token?;
    let text = token.as_str().or_else(|| token.get("content")?.as_str());
    text.map(str::to_string)
}
