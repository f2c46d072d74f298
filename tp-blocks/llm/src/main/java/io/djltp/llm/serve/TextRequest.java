package io.djltp.llm.serve;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;

import io.djltp.internal.http.ApiException;
import io.djltp.internal.http.Fields;
import io.djltp.llm.ChatMessage;
import io.djltp.llm.ChatTemplate;
import io.djltp.llm.GenerationOptions;
import io.djltp.llm.Generator;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Function;
import java.util.function.Supplier;

/** A request for a chat or a completion: its prompts, and how texts are generated. */
final class TextRequest {

    private static final int MAX_SAMPLES = 64;
    private static final int MAX_STOPS = 16;
    private static final int MAX_LIKELIEST = 20; // as OpenAI for chats
    private static final int MAX_MESSAGES = 10_000;
    private static final int COMPLETION_TOKENS = 16; // OpenAI's default
    private static final String MESSAGES = "messages";
    private static final String PROMPT = "prompt";
    private static final String PROMPTS =
            "a string, a list of strings, a list of token ids, or a list of such lists";
    private static final String TOO_LONG = "context_length_exceeded"; // as OpenAI

    /** Fields that would change the result, and are not implemented. */
    private static final List<String> UNSUPPORTED =
            List.of(
                    ("tools functions logit_bias presence_penalty frequency_penalty echo"
                                    + " suffix audio")
                            .split(" "));

    /** Their values that change nothing. */
    private static final Set<String> NO_EFFECT = Set.of("false", "0", "0.0", "", "[]", "{}");

    private static final Map<String, String> ROLES =
            Map.of(
                    "system", "system",
                    "developer", "system",
                    "user", "user",
                    "assistant", "assistant");

    final boolean chat;
    final boolean stream;
    final boolean usage; // at the end of the stream
    final List<int[]> prompts; // each as often as there are samples of it
    final GenerationOptions options;
    private final int samples;

    TextRequest(Fields fields, boolean chat, Generator generator) {
        this.chat = chat;
        checkSupported(fields);
        stream = fields.is("stream");
        usage = stream && fields.has("stream_options") && includesUsage(fields);
        samples = (int) fields.integer("n", 1, MAX_SAMPLES, 1);
        List<int[]> all = chat ? List.of(chat(fields, generator)) : prompts(fields, generator);
        prompts = all.stream().flatMap(ids -> Collections.nCopies(samples, ids).stream()).toList();
        options = options(fields, generator);
    }

    /** Returns how many tokens the prompts have, each of which counts once. */
    int promptTokens() {
        return prompts.stream().mapToInt(ids -> ids.length).sum() / samples;
    }

    private static boolean includesUsage(Fields fields) {
        return fields.object("stream_options").is("include_usage");
    }

    private static void checkSupported(Fields fields) {
        for (String name : UNSUPPORTED) {
            JsonElement value = fields.get(name);
            String text = value instanceof JsonPrimitive ? value.getAsString() : value + "";
            if (value != null && !NO_EFFECT.contains(text)) {
                throw unsupported(name, "is not supported by this server: leave it out");
            }
        }
        if (fields.has("best_of")) {
            checkOnly("best_of", fields.required("best_of"), "1");
        }
        if (fields.has("response_format")) {
            checkOnly("response_format", fields.object("response_format").required("type"), "text");
        }
        if (fields.has("modalities")) {
            fields.list("modalities", 1, 1).forEach(each -> checkOnly("modalities", each, "text"));
        }
    }

    /** Checks a field of which one value is implemented. */
    private static void checkOnly(String name, JsonElement value, String only) {
        if (!value.isJsonPrimitive() || !value.getAsString().equals(only)) {
            throw unsupported(name, "must be %s; %s is not supported".formatted(only, value));
        }
    }

    private static ApiException unsupported(String name, String what) {
        String message = "The field '" + name + "' " + what;
        return new ApiException(400, name, "unsupported_parameter", message);
    }

    private static int[] chat(Fields fields, Generator generator) {
        List<ChatMessage> messages = new ArrayList<>();
        for (JsonElement each : fields.list(MESSAGES, 1, MAX_MESSAGES)) {
            if (!(each instanceof JsonObject object)) {
                throw Fields.wrong(MESSAGES, "a list of objects", each);
            }
            messages.add(message(new Fields(object)));
        }
        ChatTemplate template = generator.getModel().getChatTemplate();
        if (template == null) {
            throw ApiException.of(MESSAGES, "The model has no chat template. Use /v1/completions");
        }
        Map<String, ?> variables =
                fields.has("chat_template_kwargs")
                        ? fields.object("chat_template_kwargs").toMap()
                        : Map.of();
        String text = checked(MESSAGES, () -> template.render(messages, true, variables));
        return encoded(MESSAGES, () -> generator.encodeChat(text));
    }

    private static ChatMessage message(Fields message) {
        String role = ROLES.get(message.string("role"));
        if (role == null) {
            throw Fields.wrong("role", "one of " + ROLES.keySet(), message.required("role"));
        }
        if (!(message.required("content") instanceof JsonArray parts)) {
            return new ChatMessage(role, message.string("content"));
        }
        List<String> texts = new ArrayList<>();
        for (JsonElement each : parts) {
            if (!(each instanceof JsonObject object)) {
                throw Fields.wrong("content", "a string or a list of parts", each);
            }
            Fields part = new Fields(object);
            checkOnly("type", part.required("type"), "text");
            texts.add(part.string("text"));
        }
        return new ChatMessage(role, String.join("\n", texts));
    }

    /** Returns the prompts of a string, strings, the ids of one, or those of several. */
    private static List<int[]> prompts(Fields fields, Generator generator) {
        JsonElement prompt = fields.required(PROMPT);
        if (prompt instanceof JsonArray array && !array.isEmpty() && isNumber(array.get(0))) {
            return List.of(ids(array));
        }
        List<int[]> prompts = new ArrayList<>();
        for (JsonElement each : fields.list(PROMPT, 1, Integer.MAX_VALUE)) {
            if (each instanceof JsonArray array) {
                prompts.add(ids(array));
            } else if (each instanceof JsonPrimitive text && text.isString()) {
                String string = Fields.string(text, PROMPT);
                prompts.add(encoded(PROMPT, () -> generator.encode(string)));
            } else {
                throw Fields.wrong(PROMPT, PROMPTS, each);
            }
        }
        return prompts;
    }

    private static boolean isNumber(JsonElement value) {
        return value instanceof JsonPrimitive primitive && primitive.isNumber();
    }

    /** Returns the ids of a text, which may be too long for the generator. */
    private static int[] encoded(String name, Supplier<int[]> ids) {
        try {
            return ids.get();
        } catch (IllegalArgumentException e) {
            throw new ApiException(400, name, TOO_LONG, "" + e.getMessage());
        }
    }

    private static int[] ids(JsonArray array) {
        int[] ids = new int[array.size()];
        for (int i = 0; i < ids.length; i++) {
            if (!isNumber(array.get(i))) {
                throw Fields.wrong(PROMPT, PROMPTS, array.get(i));
            }
            ids[i] = (int) Fields.integer(array.get(i), PROMPT, 0, Integer.MAX_VALUE);
        }
        return ids;
    }

    private GenerationOptions options(Fields fields, Generator generator) {
        GenerationOptions.Builder builder = generator.getDefaults().toBuilder();
        set(fields, "temperature", builder::optTemperature);
        set(fields, "top_p", builder::optTopP);
        set(fields, "min_p", builder::optMinP);
        set(fields, "repetition_penalty", builder::optRepetitionPenalty);
        if (fields.has("top_k")) { // as in vLLM, -1 is all
            builder.optTopK((int) Math.max(0, fields.integer("top_k", -1, Integer.MAX_VALUE, 0)));
        }
        long random = ThreadLocalRandom.current().nextLong();
        builder.optSeed(fields.integer("seed", Long.MIN_VALUE, Long.MAX_VALUE, random));
        if (fields.has("stop")) {
            List<String> stops = fields.strings("stop", 0, MAX_STOPS);
            checked("stop", () -> builder.optStopStrings(stops));
        }
        List<Integer> stopTokens = new ArrayList<>();
        if (!fields.is("ignore_eos")) {
            stopTokens.addAll(generator.getDefaults().getStopTokens());
        }
        if (fields.has("stop_token_ids")) {
            int ids = generator.getModel().getConfig().getVocabularySize();
            for (JsonElement each : fields.list("stop_token_ids", 0, MAX_STOPS)) {
                stopTokens.add((int) Fields.integer(each, "stop_token_ids", 0, ids - 1));
            }
        }
        return builder.optStopTokens(stopTokens)
                .optLogProbabilities(likeliest(fields))
                .optMaxTokens(tokens(fields, generator))
                .build();
    }

    /** Returns of how many of the likeliest tokens the logarithmic probabilities are wanted. */
    private int likeliest(Fields fields) {
        if (!chat) {
            return (int) fields.integer("logprobs", 0, MAX_LIKELIEST, -1);
        }
        boolean wanted = fields.is("logprobs");
        int likeliest = (int) fields.integer("top_logprobs", 0, MAX_LIKELIEST, 0);
        if (likeliest > 0 && !wanted) {
            throw ApiException.of("top_logprobs", "The field 'top_logprobs' needs logprobs: true");
        }
        return wanted ? likeliest : -1;
    }

    private static void set(
            Fields fields, String name, Function<Float, GenerationOptions.Builder> setter) {
        if (fields.has(name)) {
            float value = Fields.number(fields.required(name), name);
            checked(name, () -> setter.apply(value));
        }
    }

    /** Returns the most tokens of a text, for which there is room after the longest prompt. */
    private int tokens(Fields fields, Generator generator) {
        int length = generator.getMaxLength();
        int longest = prompts.stream().mapToInt(ids -> ids.length).max().orElse(0);
        int room = length - longest;
        String name = fields.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
        int byDefault = chat ? room : Math.min(room, COMPLETION_TOKENS);
        long tokens = fields.integer(name, 1, Integer.MAX_VALUE, Math.max(1, byDefault));
        if (tokens > room) {
            throw new ApiException(
                    400,
                    chat ? MESSAGES : PROMPT,
                    TOO_LONG,
                    String.format(
                            "The server has room for %d tokens, and the prompt has %d, with %d to"
                                    + " generate. Shorten the prompt, or lower %s",
                            length, longest, tokens, name));
        }
        return (int) tokens;
    }

    /** Makes the exceptions of arguments errors of a field. */
    static <T> T checked(@Nullable String name, Supplier<T> call) {
        try {
            return call.get();
        } catch (IllegalArgumentException e) {
            throw ApiException.of(name, "%s", e.getMessage());
        }
    }
}
