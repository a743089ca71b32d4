"""Tokenizers of Python, to compare with: `make FOLDER` trains small ones there; `answer FOLDER` answers JSON lines on stdin.

A request is `{"texts": [...], "chats": [{"messages": [...], "tools": [...] | null, "variables": {...}}]}`; its answer has, for each tokenizer, ids with and without
special tokens, the text of these ids with and without special tokens, and for each chat its text.
"""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12,345.67 metres, isn't it?",
    "def add(a, b):\n    return a + b\n\n\tprint(add(1, 2))  # three",
    "Süße Grüße aus Zürich — ça va? Ñandú, œuvre; 東京と大阪。 привет мир 👩‍🚀🎉",
    '{"name": "add", "arguments": {"a": 1, "b": [2, 3]}}',
] * 4

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and message.content is string and ns.last == messages|length - 1 %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content or '' %}
        {%- if '</think>' in content and loop.index0 < ns.last %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
                {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
                {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

PLAIN = """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'user' %}
[INST] {{ message['content'] | trim }} [/INST]
{% elif message['role'] == 'assistant' %}
 {{ message['content'] or '' }}{{ eos_token }}
{% elif message['role'] != 'system' and message['role'] != 'tool' %}
{{ raise_exception('role ' ~ message['role'] ~ ' is unknown') }}
{% endif %}
{% endfor %}
{% if tools is not none %}{{ tools | map(attribute='function') | map(attribute='name') | join(', ') }}{% endif %}"""


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(word, special=False) for word in ("<think>", "</think>")])
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special), CHAT


def metaspace():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["▁" + line.replace(" ", "▁") for line in CORPUS], trainer)
    own = json.loads(tokenizer.to_str())
    own["added_tokens"] = [token for token in own["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(own))
    begin = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[begin])
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special), PLAIN


def characters():
    words = ["<pad>", "<end>", "<unk>", *"0123456789+-*= "]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<pad>", "<end>", "<unk>"])
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special), None


def make(folder):
    for kind in (byte_level, metaspace, characters):
        tokenizer, template = kind()
        if template:
            tokenizer.chat_template = template
        tokenizer.save_pretrained(folder / kind.__name__.replace("_", "-"))


def chat_of(tokenizer, messages, tools, variables):
    try:
        given = {"tokenize": False, "add_generation_prompt": True, **variables}
        return tokenizer.apply_chat_template(messages, tools=tools, **given)
    except Exception as error:
        return {"error": str(error)}


def answer(folder, request):
    answers = {}
    for path in sorted(folder.iterdir()):
        tokenizer = AutoTokenizer.from_pretrained(path)
        rows = []
        for text in request["texts"]:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            rows.append({
                "ids": ids,
                "special": tokenizer(text)["input_ids"],
                "plain": tokenizer.decode(ids, skip_special_tokens=True),
                "text": tokenizer.decode(ids, skip_special_tokens=False),
            })
        chats = request["chats"] if tokenizer.chat_template else []
        answers[path.name] = {"texts": rows, "chats": [chat_of(tokenizer, **chat) for chat in chats]}
    return answers


def main():
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "make":
        make(folder)
        return
    for line in sys.stdin:
        print(json.dumps(answer(folder, json.loads(line))), flush=True)


main()
