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
        // snippets of which each does one thing; the last of them fail on both sides
        for (String line : Files.readAllLines(resources.resolveSibling("snippets.txt"))) {
            String snippet = GSON.fromJson(line, String.class);
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
            {"{{ {} | tojson(sort_keys=true) }}", "sort_keys of tojson are not supported"},
            {"{{ [1] | join(',', 'a', 'b') }}", "join does not take 3 arguments"},
            {"{{ [{}] | map('default', other=1) }}", "map does not take the argument other"},
            {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "does not take 2 arguments"},
            {"{{ strftime_now('%d %e') }}", "the format %d %e; known are %a"},
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
        RandomFolder.writeDecoder(model, "'max_position_embeddings': 200");
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
