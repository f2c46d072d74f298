package io.djltp.llm;

import ai.djl.MalformedModelException;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;

import io.djltp.rank.ParallelConfig;
import io.djltp.testing.PyTorch;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;

/**
 * Chat templates, against Jinja for Python as transformers sets it up. Those of the resources are
 * in the form of the formats of published models, and use what their templates use; the text is
 * ours.
 */
public class ChatTemplateTest {

    private static final Gson GSON =
            new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final String TOOL =
            "{'type': 'function', 'function': {'name': 'weather', 'description': \"It's <b>\\\"é\","
                    + " 'parameters': {'type': 'object', 'properties': {'city': {'type': 'string',"
                    + " 'default': null}, 'days': {'minimum': 0.5, 'x': [1, true, {}, []]}}}}}";

    /** Snippets, of which each does one thing. */
    private static final List<String> SNIPPETS =
            List.of(
                    "a\n{% if true %}\n  b\n{% endif %}\nc\n",
                    "a\n   {%- if true -%}  \n  b\n{%- endif %}\n\nc\n\n",
                    "  {%+ if true +%}\n b{# note #}\n {#- note -#} \n {% endif %}{{ 1 }}\n c",
                    "{{ 'it\\'s' }}{{ \"%}\" ~ '}}' }}{{ '\\u00e9\\x41\\d' }}{{ 'a' 'b' }}",
                    "{{ {'a': {'b': 1}}.a.b }}{{ {'a': 1}['a'] }}{{ {}.x }}{{ {}['x'] }}",
                    "{{ 'abc'[::-1] }}{{ 'abc'[1:] }}{{ 'abc'[-1] }}{{ 'abc'[:-1] }}{{ 'abc'[9] }}",
                    "{{ [1, 2, 3, 4][1:3] }}{{ [1, 2, 3, 4][::2] }}{{ [1, 2, 3][5:] }}"
                            + "{{ [1, 2, 3][-9:2] }}{{ [1, 2, 3, 4][3:0:-2] }}",
                    "{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}{{ b }}{{ loop.index }}{{"
                            + " loop.revindex }}{{ loop.last }}{{ loop.nextitem is defined }}{% endfor"
                            + " %}",
                    "{% for a in [1, 2, 3, 4] if a > 1 %}{% if a == 4 %}{% break %}{% endif %}"
                            + "{% if a == 2 %}{% continue %}{% endif %}{{ a }}{{ loop.length }}"
                            + "{% else %}none{% endfor %}",
                    "{% for a in [] %}{{ a }}{% else %}none{% endfor %}{% for c in 'aé😀' %}"
                            + "{{ c }},{% endfor %}{% for k in {'p': 1} %}{{ k }}{% endfor %}",
                    "{% set x = 1 %}{% for a in [1, 2] %}{{ x }}{% set x = x + a %}{{ x }}"
                            + "{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}",
                    "{% set x %}\n a{{ 1 }}\n{% endset %}[{{ x }}]{{ x | length }}",
                    "{% set n = namespace(a=1, b=[1, 2]|length - 1) %}{% for i in [1, 2] %}"
                            + "{% set n.a = n.a + i %}{% endfor %}{{ n.a }}{{ n.b }}{{ n.c }}",
                    "{% macro f(a, b=2) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{% set c = 5 %}"
                            + "{{ f(1) }}{{ f('x', b='y') }}{{ f() | length }}",
                    "{{ 1 if false }}{{ 1 if true else 2 }}{{ 1 if 0 else 2 if '' else 3 }}",
                    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 * 3 - 1"
                            + " }} {{ 1.5 + 1 }} {{ 1e20 }} {{ 0.00001 }} {{ 4 / 2 }} {{ 0.0 }} {{"
                            + " 12345678.5 }} {{ 0.0005 }} {{ 1.25e-7 }} {{ 'ab' * 2 }}",
                    "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 'a' in 'cat' }}{{ 1 not in [1, 2] }}{{ 'k' in"
                            + " {'k': 1} }}{{ not 1 == 1.0 }}{{ 'a' < 'b' }}{{ 1 in none_ }}",
                    "{{ ['(', '', 'a',] | join }}{{ {'[': '', 'b': '{'}['b'] }}{{ [] }}{{ [[1], []]"
                            + " }}",
                    "{{ true and 'x' or 'y' }}{{ '' or 'y' }}{{ not '' }}{{ 0 and 1 }}",
                    "{{ none }}{{ true }}{{ ['a', \"it's\", none, 1.0, {'k': 'v\\n'}] }}{{ u }}",
                    "{{ x is defined }}{{ x is not defined }}{{ none is none }}{{ 'a' is string"
                            + " }}{{ {} is mapping }}{{ [] is iterable }}{{ 1 is number }}{{ 1 is odd"
                            + " }}{{ 'a' is iterable }}{{ 1 is eq 1 }}{{ false is false }}{{ 1 is true"
                            + " }}{{ [] is sequence }}{{ 1.0 is float }}{{ true is boolean }}{{ 1 is"
                            + " integer }}{{ 1 is in [1] }}{{ x is none }}{{ {} is sequence }}{{ x is"
                            + " iterable }}{{ 2 is even }}",
                    "{{ ' a b '.strip() }}|{{ 'xxaxx'.lstrip('x') }}|{{ 'a\\n'.rstrip() }}|"
                            + "{{ 'a,b,c'.split(',', 1) }}|{{ ' a  b '.split() }}|"
                            + "{{ 'a</t>b'.split('</t>')[-1] }}|{{ 'abc'.replace('b', 'x') }}|"
                            + "{{ 'A'.lower() }}{{ 'a'.upper() }}{{ 'aB c'.capitalize() }}|"
                            + "{{ 'ab cd'.title() }}|{{ 'abc'.find('c') }}||"
                            + "{{ ','.join(['a', 'b']) }}|{{ 'abc'.startswith('ab') }}|"
                            + "{{ 'abc'.endswith(('x', 'c')) }}|{{ ''.split() }}|"
                            + "{{ ' a b  c '.split(none, 1) }}|{{ 'a,'.split(',') }}",
                    "{{ '\\u00a0a\\u2003'.strip() }}|{{ ' a ' | trim }}|{{ [1, 2] | length }}|{{"
                            + " 'é😀' | length }}|{{ [1, 2] | join(', ') }}|{{ [3, 4] | last }}|{{ [3,"
                            + " 4] | first }}|{{ 'ab' | list }}|{{ u | default('d') }}|{{ '' |"
                            + " default('d', true) }}|{{ 'a' | upper | lower }}|{{ '7' | int }}|{{ [1,"
                            + " 2] | reverse | list }}|{{ {'b': 1, 'A': 2} | dictsort | map('first') |"
                            + " join }}|{{ 'x\\n"
                            + "\\n"
                            + "y' | indent }}|{{ 'x\\n"
                            + "y' | indent(2, true) }}|{{ 'aab' | replace('a', 'c') }}|{{ 5 | string"
                            + " }}|{{ 'x' | int }}|{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{%"
                            + " endfor %}",
                    "{{ [{'r': 'u', 'n': 1}, {'r': 'a'}] | selectattr('r', 'equalto', 'u') | list"
                            + " }}{{ [{'r': 1}, {}] | selectattr('r', 'defined') | list | length }}{{"
                            + " [{'r': 1}, {'r': 0}] | rejectattr('r') | list }}{{ [1, 2, 3] |"
                            + " reject('equalto', 2) | join('-') }}{{ [1, 2, 3] | select('odd') | list"
                            + " }}{{ ['a'] | map('upper') | list }}{{ [{'n': {'m': 1}}] |"
                            + " map(attribute='n.m') | list }}",
                    "{{ tools | tojson }}|{{ tools | tojson(indent=2) }}|{{ 'a\"\\\\\\u0001é</b>' |"
                            + " tojson }}",
                    "{% generation %}\n a\n{% endgeneration %}\nb",
                    "{{ range(3) | list }}{{ range(1, 7, 2) | list }}{{ range(3, 0, -1) | list }}",
                    "{{ '{{ 7 * 7 }}' }}{{ messages[1].content }}",
                    "{{- 'a' -}}  \n  {{ 'b' }}\n{% set a = (1, 2) %}{{ a[0] }}{{ a | length }}\n",
                    "{{ strftime_now('%d %b %Y %B %A') }}",
                    "{{ 'a' ~ 1 ~ none ~ true ~ [1] }}{{ ('a' + 'b') | upper }}{{ 'a' + 'b' | upper"
                            + " }}",
                    "{{ -1 | string ~ 'x' }}{{ 3 - -1 }}{{ 'x' if not (true and false) }}",
                    "{{ messages | map(attribute='role') | join(' ') }}{{ messages[-1]['role'] }}",
                    // these fail on both sides
                    "{{ u.x }}",
                    "{{ 'a' + 1 }}",
                    "{{ u() }}",
                    "{{ 1 // 0 }}",
                    "{{ raise_exception('This ' ~ 1) }}",
                    "{% if %}x{% endif %}",
                    "{% for a in 1 %}{% endfor %}",
                    "{{ 'a'.nothing() }}",
                    "{{ 'x' | nothing }}",
                    "{% if true %}",
                    "{{ 'a }}",
                    "{{ 'a' ",
                    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
                    "{% for a in [1] %}{{ a }}",
                    "{% endif %}",
                    "{# a");

    private final Path folder = TestFolder.create();

    private static List<Map<String, Object>> chat(String... words) {
        List<Map<String, Object>> messages = new ArrayList<>();
        for (int i = 0; i < words.length; i += 2) {
            Map<String, Object> message = new LinkedHashMap<>();
            message.put("role", words[i]);
            message.put("content", words[i + 1]);
            messages.add(message);
        }
        return messages;
    }

    private static List<List<Map<String, Object>>> chats() {
        String thought = "<think>\nWell,\n</think>\n\n Hm \n";
        return List.of(
                chat("user", "Hello"),
                chat("user", ""),
                chat("system", " Be brief. ", "user", "{{ 7 * 7 }} {% raw %}", "assistant", ""),
                chat("user", "Grüße, 世界 😀\n", "assistant", thought, "user", "a}}\\n'\"<|im_end|>"),
                chat(
                        "system",
                        "",
                        "user",
                        "1",
                        "assistant",
                        "2",
                        "user",
                        "3",
                        "assistant",
                        thought),
                chat("assistant", "I begin", "user", "no"),
                chat("user", "x", "tool", "{\"a\": 1}", "assistant", "y"));
    }

    private static Map<String, Object> variables(Object messages, boolean prompt, Object tools) {
        Map<String, Object> all = new LinkedHashMap<>();
        all.put("bos_token", "<s>");
        all.put("eos_token", "</s>");
        all.put("messages", messages);
        all.put("tools", tools);
        all.put("add_generation_prompt", prompt);
        return all;
    }

    private static Object tools() {
        return List.of(GSON.fromJson(TOOL, Map.class));
    }

    @Test(timeOut = 120_000)
    public void templatesRenderAsInPython() throws Exception {
        List<String> templates = new ArrayList<>();
        Path resources =
                Path.of(System.getProperty("basedir", "."), "src/test/resources/llm/templates");
        try (Stream<Path> files = Files.list(resources)) {
            for (Path file : files.sorted().toList()) {
                templates.add(Files.readString(file));
            }
        }
        Assert.assertEquals(templates.size(), 7);
        List<Map<String, Object>> cases = new ArrayList<>();
        for (String template : templates) {
            for (List<Map<String, Object>> messages : chats()) {
                for (Object tools : new Object[] {null, tools()}) {
                    cases.add(
                            Map.of(
                                    "template",
                                    template,
                                    "variables",
                                    variables(messages, tools == null, tools)));
                }
            }
            Map<String, Object> quiet = variables(chats().get(2), true, null);
            quiet.put("enable_thinking", false);
            cases.add(Map.of("template", template, "variables", quiet));
            Map<String, Object> call = Map.of("name", "f", "arguments", Map.of("x", "é"));
            List<Map<String, Object>> calls = chat("user", "x", "assistant", "");
            calls.get(1).put("tool_calls", List.of(Map.of("function", call, "id", "123456789")));
            cases.add(Map.of("template", template, "variables", variables(calls, true, null)));
            List<Map<String, Object>> seen = chat("user", "", "assistant", "A");
            Map<String, String> words = Map.of("type", "text", "text", " is? ");
            seen.get(0).put("content", List.of(Map.of("type", "image"), words));
            cases.add(Map.of("template", template, "variables", variables(seen, true, tools())));
            Map<String, Object> more = variables(calls, false, tools());
            more.putAll(Map.of("builtin", List.of("f", "code"), "tools_first", true, "day", "1"));
            cases.add(Map.of("template", template, "variables", more));
        }
        for (String snippet : SNIPPETS) {
            Map<String, Object> variables = variables(chats().get(3), true, tools());
            cases.add(Map.of("template", snippet, "variables", variables));
        }
        List<String> results =
                PyTorch.run(
                        "jinja2", "llm/templates.py", cases.stream().map(GSON::toJson).toList());
        Assert.assertEquals(results.size(), cases.size());
        int texts = 0;
        List<String> different = new ArrayList<>();
        for (int i = 0; i < cases.size(); i++) {
            String template = (String) cases.get(i).get("template");
            JsonObject result = GSON.fromJson(results.get(i), JsonObject.class);
            String text;
            try {
                text = render(template, (Map<?, ?>) cases.get(i).get("variables"));
            } catch (IllegalArgumentException e) {
                text = result.has("error") ? null : e.getMessage();
            }
            texts += result.has("text") ? 1 : 0;
            String expected = result.has("text") ? result.get("text").getAsString() : null;
            if (!Objects.equals(text, expected)) {
                different.add("\n" + cases.get(i) + "\n" + text + "\nand not\n" + result);
            }
        }
        Assert.assertTrue(different.isEmpty(), different.toString());
        Assert.assertTrue(texts > 145, texts + " of " + cases.size());
    }

    @SuppressWarnings("unchecked")
    private static String render(String template, Map<?, ?> variables) {
        return JinjaTemplate.parse("x", template).render((Map<String, ?>) variables);
    }

    private void write(String name, String text) throws IOException {
        Files.writeString(folder.resolve(name), text.replace('\'', '"'));
    }

    private ChatTemplate read() throws IOException, MalformedModelException {
        return ChatTemplate.read(folder);
    }

    private static final List<ChatMessage> HELLO = List.of(new ChatMessage("user", "Hi {{ 1 }}"));

    @DataProvider
    public static Object[][] configs() {
        String text = "{{ bos_token }}{{ messages[0].content }}{{ x }}{{ pad_token }}";
        String tokens = "'bos_token': {'content': '<s>'}, 'pad_token': null, 'x_token': 3";
        String named = "[{'name': 'tool_use', 'template': ''}, {'name': '%s', 'template': '%s'}]";
        return new Object[][] {
            {"{" + tokens + ", 'chat_template': '" + text + "'}", "<s>Hi {{ 1 }}"},
            {"{" + tokens + ", 'chat_template': " + named.formatted("default", text) + "}", null},
            {"{'chat_template': '" + text + "'}", "<b>Hi {{ 1 }}"},
            {"{'bos_token': '<s>', 'chat_template': null}", ""},
            {"{}", ""},
        };
    }

    /** A string or a list, special tokens of both files, or no template. */
    @Test(dataProvider = "configs")
    public void templateOfConfig(String config, String expected) throws Exception {
        write("special_tokens_map.json", "{'bos_token': '<b>', 'pad_token': '<p>'}");
        write("tokenizer_config.json", config);
        ChatTemplate template = read();
        if ("".equals(expected)) {
            Assert.assertNull(template);
        } else {
            String text = template.render(HELLO, true);
            Assert.assertEquals(text, (expected == null ? "<s>Hi {{ 1 }}" : expected) + "<p>");
        }
    }

    @Test
    public void fileOfTemplateComesFirst() throws Exception {
        write("tokenizer_config.json", "{'eos_token': '</s>', 'chat_template': 'other'}");
        write(
                "chat_template.jinja",
                "{{ a }}{{ b.c }}{{ add_generation_prompt }}{{ eos_token }}\n");
        Map<String, Object> variables = Map.of("a", 1, "b", Map.of("c", List.of(0.5f)));
        try {
            Assert.assertEquals(read().render(HELLO, false, variables), "1[0.5]False</s>");
            Assert.assertThrows(
                    IllegalArgumentException.class,
                    () -> read().render(HELLO, true, Map.of("a", folder)));
        } finally {
            Files.delete(folder.resolve("chat_template.jinja"));
        }
    }

    @DataProvider
    public static Object[][] wrong() {
        String grow = "{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}";
        String deep = "{% set n.l = [n.l] %}";
        String share = "{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}";
        String all = "{% for i in range(100000) %}";
        return new Object[][] {
            {"a\n{% include 'b' %}", "line 2: the tag include is not supported"},
            {"{% if a %}\n\n{{ b", "line 3: }} is missing"},
            {"\n{{ 'a' | attr('b') }}", "line 2: the filter attr is not supported"},
            {"{{ 'a' is lower }}", "the test lower is not supported"},
            {"{{ messages[0].content.encode() }}", "'encode', which is undefined, cannot"},
            {"\n\n{{ raise_exception('roles must alternate') }}", "line 3: roles must alternate"},
            {"{{ ''.getClass() }}", "'getClass', which is undefined, cannot"},
            {"{{ messages.getClass() }}", "'getClass', which is undefined, cannot be called"},
            {"{{ messages[0]['__class__'].x }}", "'__class__' is undefined, and has no x"},
            {"{% set n = namespace(s='a') %}" + grow, "makes more than 50000000 characters"},
            {"{% set n = namespace(s=[1]) %}" + grow, "makes more than 50000000 characters"},
            {all + all + "x{% endfor %}{% endfor %}", "makes more than 50000000 characters"},
            {"{{ range(10000000000) }}", "makes more than 50000000 characters"},
            {"{{ 'a' * 1000000000000 }}", "makes more than 50000000 characters"},
            {"{{ ('a' * 9999999).replace('a', 'a' * 99) }}", "more than 50000000 characters"},
            {
                "{% set n = namespace(l=[1]) %}" + share + "{{ n.l }}",
                "more than 50000000 characters"
            },
            {
                "{% set n = namespace(l=[1]) %}{% set m = namespace(l=[1]) %}"
                        + share
                        + share.replace("n.l", "m.l")
                        + "{{ n.l == m.l }}",
                "more than 50000000 characters"
            },
            {"{% set a = [[1]] %}{{ {a: 1} }}", "cannot be a key"},
            {"{% set s = 'a' * 999999 %}" + all + "{{ s * 10 in s }}{% endfor %}", "more than"},
            {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "the nesting is too deep"},
            {"{% set n = namespace(l=[]) %}" + all + deep + "{% endfor %}{{ n.l }}", "too deep"},
            {"{{ " + "(".repeat(100_000) + ")".repeat(100_000) + "}}", "the nesting is too deep"},
        };
    }

    /** One error each, which names the file and the line, after bounded time and memory. */
    @Test(dataProvider = "wrong", timeOut = 30_000)
    public void templateFails(String template, String message) throws Exception {
        Files.writeString(
                folder.resolve("tokenizer_config.json"),
                GSON.toJson(Map.of("chat_template", template)));
        try {
            read().render(HELLO, true);
            Assert.fail(message);
        } catch (IllegalArgumentException e) {
            Assert.assertTrue(e.getMessage().contains(message), e.getMessage());
            Assert.assertTrue(e.getMessage().contains("tokenizer_config.json, line "), e + "");
        }
    }

    @DataProvider
    public static Object[][] otherTypes() {
        return new Object[][] {
            {"1"},
            {"true"},
            {"{}"},
            {"[1]"},
            {"[null]"},
            {"['a']"},
            {"[{}]"},
            {"[{'name': 1}]"},
            {"[{'name': 'default'}]"},
            {"[{'name': 'default', 'template': {}}]"},
        };
    }

    @Test(dataProvider = "otherTypes")
    public void templatesOfOtherTypesAreNamed(String template) throws IOException {
        write("tokenizer_config.json", "{'chat_template': " + template + "}");
        Refusals.expect(
                MalformedModelException.class,
                this::read,
                "tokenizer_config.json: chat_template must be a string");
    }

    @Test
    public void noJsonAndNoDefault() throws IOException {
        write("tokenizer_config.json", "[1]");
        Assert.assertThrows(MalformedModelException.class, this::read);
        write("tokenizer_config.json", "{'chat_template': [{'name': 'rag', 'template': ''}]}");
        Assert.assertThrows(IllegalArgumentException.class, this::read);
    }

    private static final String TURNS =
            "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}:{{ m.content }}{{ eos_token }}"
                    + "{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

    /** The second turn of a chat computes only what is new, and gives what a new one does. */
    @Test(timeOut = 120_000)
    public void turnsOfAChatComputeWhatIsNew() throws Exception {
        Path model = folder.resolve("model");
        String fields = "'vocab_size': 263, 'max_position_embeddings': 200";
        RandomFolder.write(model, RandomFolder.config("llama", fields), 3);
        ByteTokenizer.write(model);
        Files.writeString(
                model.resolve("tokenizer_config.json"),
                GSON.toJson(
                        Map.of(
                                "bos_token",
                                "<|end|>",
                                "eos_token",
                                Map.of("content", "<|end|>"),
                                "chat_template",
                                TURNS)));
        List<ChatMessage> chat = new ArrayList<>(List.of(new ChatMessage("user", "hello {{ 1 }}")));
        try (Generator generator = generator(model);
                Generator other = generator(model)) {
            GenerationOptions options = generator.getDefaults().toBuilder().optMaxTokens(9).build();
            Assert.assertEquals(options.getStopTokens(), List.of(ByteTokenizer.END));
            Generation first = generator.chat(chat, options);
            int[] prompt = first.getPromptIds(0);
            String text = "<|end|>u:hello {{ 1 }}<|end|>a:";
            Assert.assertEquals(prompt, generator.encodeChat(text));
            Assert.assertEquals(prompt[0], ByteTokenizer.END);
            Assert.assertEquals(Arrays.stream(prompt).filter(id -> id == 262).count(), 2);
            chat.add(new ChatMessage("assistant", "ok"));
            first.finish();
            chat.add(new ChatMessage("user", "then?"));
            Generation second = generator.chat(chat, options);
            second.finish();
            int[] longer = second.getPromptIds(0);
            Assert.assertTrue(second.getPrefillTokens() <= longer.length - prompt.length);
            Generation fresh = other.chat(chat, options);
            fresh.finish();
            Assert.assertEquals(fresh.getPrefillTokens(), longer.length);
            Assert.assertEquals(second.getIds(0), fresh.getIds(0));
        }
        Files.delete(model.resolve("tokenizer_config.json"));
        try (Generator generator = generator(model)) {
            Assert.assertThrows(
                    IllegalStateException.class,
                    () -> generator.chat(chat, generator.getDefaults()));
        }
    }

    private static Generator generator(Path model) throws Exception {
        ParallelConfig ranks = ParallelConfig.tensor(2);
        return Generator.builder().setPath(model).optConfig(ranks).build();
    }
}
