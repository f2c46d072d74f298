package io.djltp.llm.tune;

import ai.djl.huggingface.tokenizers.Encoding;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.huggingface.tokenizers.jni.CharSpan;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.Strictness;

import io.djltp.internal.Errors;
import io.djltp.llm.ChatMessage;
import io.djltp.llm.ChatTemplate;
import io.djltp.llm.LanguageModel;

import org.jspecify.annotations.Nullable;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;

/** Reads a line of JSON as tokens, of which some have a loss. */
final class TuningText {

    private static final Gson GSON = new GsonBuilder().setStrictness(Strictness.STRICT).create();
    private static final String ASSISTANT = "assistant";
    private static final List<String> ROLES = List.of("system", "user", ASSISTANT, "tool");

    private final HuggingFaceTokenizer tokenizer;
    private final List<Integer> endIds;
    private final Path folder;
    private final @Nullable ChatTemplate template;

    /**
     * Creates a reader.
     *
     * @throws IllegalArgumentException if the model has no tokenizer
     */
    TuningText(LanguageModel model) {
        HuggingFaceTokenizer given = model.getTokenizer();
        if (given == null) {
            throw Errors.argument(
                    "There is no %s: copy it from the folder of the model",
                    model.getFolder().resolve("tokenizer.json"));
        }
        tokenizer = given;
        endIds = model.getGenerationOptions().getStopTokens();
        folder = model.getFolder();
        template = model.getChatTemplate();
    }

    /**
     * Tokens of a text.
     *
     * @param ids the tokens
     * @param learnt which of them have a loss
     * @param whole whether this is a text without a prompt, which may be split
     */
    record Tokens(int[] ids, BitSet learnt, boolean whole) {

        Tokens(long[] ids, BitSet learnt, boolean whole) {
            this(Arrays.stream(ids).mapToInt(Math::toIntExact).toArray(), learnt, whole);
        }
    }

    /**
     * Reads a line.
     *
     * @throws IllegalArgumentException if it is not of one of the three forms
     */
    Tokens read(byte[] line) {
        JsonObject json = parse(line);
        List<String> forms = Stream.of("text", "prompt", "messages").filter(json::has).toList();
        Errors.check(
                forms.size() == 1,
                "the object has %s: give it \"text\", \"prompt\" and \"completion\", or"
                        + " \"messages\"",
                forms.isEmpty() ? "the fields " + json.keySet() : "all of " + forms);
        BitSet learnt = new BitSet();
        if (json.has("text")) {
            String text = filled(json, "text");
            learnt.set(0, length(text));
            return encode(text, learnt, true);
        }
        if (json.has("messages")) {
            return encode(messages(json.get("messages")));
        }
        String prompt = string(json, "prompt");
        String text = prompt + filled(json, "completion");
        learnt.set(length(prompt), length(text));
        return encode(text, learnt, false);
    }

    private static JsonObject parse(byte[] line) {
        try {
            String text =
                    StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(line)).toString();
            return Objects.requireNonNull(GSON.fromJson(text, JsonObject.class));
        } catch (CharacterCodingException e) {
            throw new IllegalArgumentException("the line is not UTF-8: save the file as UTF-8", e);
        } catch (JsonParseException | NullPointerException e) {
            throw new IllegalArgumentException(
                    "the line is not an object of JSON: write {\"text\": \"...\"}", e);
        }
    }

    private static String filled(JsonObject json, String name) {
        String text = string(json, name);
        Errors.check(!text.isEmpty(), "\"%s\" is empty: fill it, or remove the line", name);
        return text;
    }

    private static String string(JsonObject json, String name) {
        JsonElement value = json.get(name);
        if (value == null || !value.isJsonPrimitive() || !value.getAsJsonPrimitive().isString()) {
            throw Errors.argument(
                    "\"%s\" is %s: it must be a string",
                    name, value == null ? "missing" : value.toString());
        }
        return value.getAsString();
    }

    private static List<ChatMessage> messages(JsonElement json) {
        Errors.check(json.isJsonArray(), "\"messages\" is %s: it must be a list", json);
        List<ChatMessage> messages = new ArrayList<>();
        for (JsonElement each : json.getAsJsonArray()) {
            Errors.check(
                    each.isJsonObject(),
                    "the message %s is no object: write {\"role\": \"user\", \"content\": \"...\"}",
                    each);
            String role = string(each.getAsJsonObject(), "role");
            Errors.check(
                    ROLES.contains(role), "the role \"%s\" is unknown: use one of %s", role, ROLES);
            messages.add(new ChatMessage(role, string(each.getAsJsonObject(), "content")));
        }
        Errors.check(
                messages.stream().anyMatch(message -> message.role().equals(ASSISTANT)),
                "no message has the role \"assistant\", and only these have a loss: add one");
        return messages;
    }

    /** Returns the tokens of a chat, with a loss on what the assistant says. */
    private Tokens encode(List<ChatMessage> messages) {
        if (template == null) {
            throw Errors.argument(
                    "%s has no chat template: add chat_template.jinja, or write \"prompt\" and"
                            + " \"completion\"",
                    folder);
        }
        String text = template.render(messages, false);
        BitSet learnt = new BitSet();
        for (int i = 0; i < messages.size(); i++) {
            if (messages.get(i).role().equals(ASSISTANT)) {
                String before = template.render(messages.subList(0, i), true);
                String after = template.render(messages.subList(0, i + 1), false);
                boolean goesOn = after.startsWith(before);
                Errors.check(
                        goesOn || !after.startsWith(template.render(messages.subList(0, i), false)),
                        "the chat template begins message %s with other characters than where one"
                                + " is to be generated (add_generation_prompt): mend it, or write"
                                + " \"prompt\" and \"completion\"",
                        i + 1);
                Errors.check(
                        text.startsWith(after) && goesOn,
                        "the chat template changes message %s when others follow: write a line for"
                                + " each answer of the assistant, which ends with it",
                        i + 1);
                learnt.set(length(before), length(after));
            }
        }
        Encoding encoding = tokenizer.encode(text, false, false);
        return new Tokens(encoding.getIds(), learnt(encoding.getCharTokenSpans(), learnt), false);
    }

    private static int length(String text) {
        return text.codePointCount(0, text.length());
    }

    /** Returns the tokens of a text, of which some code points have a loss, and of its end. */
    private Tokens encode(String text, BitSet learnt, boolean whole) {
        Encoding encoding = tokenizer.encode(text, true, false);
        BitSet tokens = learnt(encoding.getCharTokenSpans(), learnt);
        long[] ids = encoding.getIds();
        if (!endIds.isEmpty()) {
            if (ids.length == 0 || !endIds.contains((int) ids[ids.length - 1])) {
                ids = Arrays.copyOf(ids, ids.length + 1);
                ids[ids.length - 1] = endIds.get(0);
            }
            tokens.set(ids.length - 1);
        }
        return new Tokens(ids, tokens, whole);
    }

    /** Returns which tokens have code points with a loss; spans are of code points. */
    private static BitSet learnt(@Nullable CharSpan[] spans, BitSet learnt) {
        BitSet tokens = new BitSet();
        for (int i = 0; i < spans.length; i++) {
            CharSpan span = spans[i];
            if (span != null) {
                int next = learnt.nextSetBit(span.getStart());
                tokens.set(i, next >= 0 && next < span.getEnd());
            }
        }
        return tokens;
    }
}
