package io.djltp.llm;

import ai.djl.MalformedModelException;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The chat template of a Hugging Face folder, which turns the messages of a chat into a prompt.
 *
 * <pre>{@code
 * String prompt = template.render(List.of(new ChatMessage("user", "Hello")), true);
 * Generation answer = generator.generateIds(List.of(generator.encodeChat(prompt)), options);
 * }</pre>
 *
 * <p>The template is {@code chat_template.jinja}, or {@code chat_template} of {@code
 * tokenizer_config.json}: a program in the language Jinja. It is run by an interpreter of this
 * library that knows strings, numbers, lists and maps, and reaches no Java class, file or process.
 * It ends with an exception after too many steps or too much text. Messages are data: {@code {{ }}}
 * in a message is text. The text of a special token in a message, such as {@code <|im_end|>},
 * becomes that token, as in transformers: remove it from messages that are not trusted.
 */
public final class ChatTemplate {

    private static final String CONFIG = "tokenizer_config.json";

    private final JinjaTemplate template;
    private final Map<String, String> specialTokens;

    private ChatTemplate(JinjaTemplate template, Map<String, String> specialTokens) {
        this.template = template;
        this.specialTokens = specialTokens;
    }

    /**
     * Reads the chat template of a folder.
     *
     * @param folder a folder of Hugging Face
     * @return the template, or {@code null} if the folder has none
     * @throws IOException if a file cannot be read
     * @throws MalformedModelException if a file is not JSON, or the template is not a string
     * @throws IllegalArgumentException if the template is not valid, or uses what this library does
     *     not support
     */
    static @Nullable ChatTemplate read(Path folder) throws IOException, MalformedModelException {
        Path file = folder.resolve("chat_template.jinja");
        String source = null;
        if (Files.exists(file)) {
            source = Files.readString(file);
        } else {
            file = folder.resolve(CONFIG);
            JsonElement found = json(file).get("chat_template");
            if (found instanceof JsonArray named) {
                source = byDefault(file, named);
            } else if (found != null && !found.isJsonNull()) {
                source = string(file, found);
            }
        }
        return source == null
                ? null
                : new ChatTemplate(JinjaTemplate.parse(file.toString(), source), tokens(folder));
    }

    private static String byDefault(Path file, JsonArray templates) throws MalformedModelException {
        List<String> names = new ArrayList<>();
        for (JsonElement each : templates) {
            JsonObject template = each instanceof JsonObject object ? object : new JsonObject();
            String name = string(file, template.get("name"));
            if (name.equals("default")) {
                return string(file, template.get("template"));
            }
            names.add(name);
        }
        throw new IllegalArgumentException(
                file + " has the chat templates " + names + ", and none is named default");
    }

    private static String string(Path file, @Nullable JsonElement value)
            throws MalformedModelException {
        if (value instanceof JsonPrimitive text && text.isString()) {
            return text.getAsString();
        }
        throw new MalformedModelException(
                file
                        + ": chat_template must be a string, or a list of objects with the strings"
                        + " name and template, and has "
                        + value);
    }

    /** Returns the texts of the special tokens, such as {@code eos_token}. */
    static Map<String, String> tokens(Path folder) throws IOException, MalformedModelException {
        Map<String, String> tokens = new LinkedHashMap<>();
        for (String name : List.of("special_tokens_map.json", CONFIG)) { // the second one counts
            for (Map.Entry<String, JsonElement> each : json(folder.resolve(name)).entrySet()) {
                JsonElement value = each.getValue();
                if (value instanceof JsonObject token) {
                    value = token.get("content");
                }
                if (each.getKey().endsWith("_token")
                        && value != null
                        && value.isJsonPrimitive()
                        && value.getAsJsonPrimitive().isString()) {
                    tokens.put(each.getKey(), value.getAsString());
                }
            }
        }
        return tokens;
    }

    private static JsonObject json(Path file) throws IOException, MalformedModelException {
        return Files.exists(file) ? ConfigFields.parse(file, JsonObject.class) : new JsonObject();
    }

    /**
     * Renders a chat as a prompt. Its special tokens are in the text: encode it with {@link
     * Generator#encodeChat}, which adds no other ones.
     *
     * @param messages the messages, the oldest first
     * @param addGenerationPrompt whether the prompt ends with the beginning of an answer
     * @return the prompt
     * @throws IllegalArgumentException if the template rejects the messages, for example a role
     *     that it does not know, or fails
     */
    public String render(List<ChatMessage> messages, boolean addGenerationPrompt) {
        return render(messages, addGenerationPrompt, Map.of());
    }

    /**
     * Renders a chat as a prompt, with variables of the template, such as {@code enable_thinking}
     * of Qwen 3.
     *
     * @param messages the messages, the oldest first
     * @param addGenerationPrompt whether the prompt ends with the beginning of an answer
     * @param variables the variables: strings, numbers, booleans, and lists and maps of these
     * @return the prompt
     * @throws IllegalArgumentException if the template rejects the messages, or fails, or a
     *     variable is of another type
     */
    public String render(
            List<ChatMessage> messages, boolean addGenerationPrompt, Map<String, ?> variables) {
        Map<String, @Nullable Object> all = new LinkedHashMap<>(specialTokens);
        all.put("tools", null); // as transformers sets it without tools
        all.put("documents", null);
        all.putAll(variables);
        List<Object> list = new ArrayList<>();
        for (ChatMessage message : messages) {
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("role", message.role());
            fields.put("content", message.content());
            list.add(fields);
        }
        all.put("messages", list);
        all.put("add_generation_prompt", addGenerationPrompt);
        return template.render(all);
    }
}
