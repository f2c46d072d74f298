package io.djltp.llm.langchain4j;

import dev.langchain4j.data.message.AiMessage;
import dev.langchain4j.data.message.ChatMessage;
import dev.langchain4j.data.message.SystemMessage;
import dev.langchain4j.data.message.UserMessage;
import dev.langchain4j.exception.UnsupportedFeatureException;
import dev.langchain4j.model.ModelProvider;
import dev.langchain4j.model.chat.Capability;
import dev.langchain4j.model.chat.ChatModel;
import dev.langchain4j.model.chat.StreamingChatModel;
import dev.langchain4j.model.chat.listener.ChatModelListener;
import dev.langchain4j.model.chat.request.ChatRequest;
import dev.langchain4j.model.chat.request.ChatRequestParameters;
import dev.langchain4j.model.chat.request.ResponseFormatType;
import dev.langchain4j.model.chat.response.ChatResponse;
import dev.langchain4j.model.chat.response.ChatResponseMetadata;
import dev.langchain4j.model.chat.response.PartialResponse;
import dev.langchain4j.model.chat.response.PartialResponseContext;
import dev.langchain4j.model.chat.response.StreamingChatResponseHandler;
import dev.langchain4j.model.chat.response.StreamingHandle;
import dev.langchain4j.model.output.FinishReason;
import dev.langchain4j.model.output.TokenUsage;

import io.djltp.llm.GeneratedToken;
import io.djltp.llm.Generation;
import io.djltp.llm.GenerationOptions;
import io.djltp.llm.Generator;

import org.jspecify.annotations.Nullable;

import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * A {@link Generator} as chat model of LangChain4j, streaming or not.
 *
 * <pre>{@code
 * ChatModel model = new GeneratorChatModel(generator);
 * String answer = model.chat("What is a rank?");
 * }</pre>
 *
 * <p>Requests may set {@code temperature}, {@code topP}, {@code topK}, {@code maxOutputTokens} and
 * {@code stopSequences}; {@link Generator#getDefaults} has what they do not set. Any other
 * parameter, a tool, or a message with an image throws {@link UnsupportedFeatureException}.
 *
 * <p>Any number of threads may use the model: their answers share the batch of the generator. Each
 * streamed answer has a thread of its own, which calls the handler.
 */
public final class GeneratorChatModel implements ChatModel, StreamingChatModel {

    private final Generator generator;
    private final ChatRequestParameters defaults;
    private final List<ChatModelListener> listeners;

    /**
     * Creates a model.
     *
     * @param generator the generator, whose model has a chat template; it is closed by the caller
     */
    public GeneratorChatModel(Generator generator) {
        this(generator, ChatRequestParameters.builder().build(), List.of());
    }

    /**
     * Creates a model.
     *
     * @param generator the generator, whose model has a chat template; it is closed by the caller
     * @param defaults the parameters of requests that do not set them
     * @param listeners what is told of requests, answers and errors
     */
    public GeneratorChatModel(
            Generator generator,
            ChatRequestParameters defaults,
            List<ChatModelListener> listeners) {
        this.generator = generator;
        this.defaults = defaults;
        this.listeners = List.copyOf(listeners);
    }

    /**
     * Answers a chat.
     *
     * @param request the messages and parameters
     * @return the answer, its tokens, and why it has ended
     * @throws UnsupportedFeatureException if the request has what a generator does not know
     * @throws IllegalArgumentException if the chat is too long, or a parameter is out of range
     * @throws IllegalStateException if the model has no chat template, or the generator is closed
     */
    @Override
    public ChatResponse doChat(ChatRequest request) {
        try (Generation answer = begin(request)) {
            answer.finish();
            return response(answer);
        }
    }

    /**
     * Answers a chat in a new thread. Errors go to the handler.
     *
     * @param request the messages and parameters
     * @param handler gets pieces of whole characters; after it cancels, nothing
     * @throws UnsupportedFeatureException if the request has what a generator does not know
     * @throws IllegalArgumentException if the chat is too long, or a parameter is out of range
     * @throws IllegalStateException if the model has no chat template, or the generator is closed
     */
    @Override
    public void doChat(ChatRequest request, StreamingChatResponseHandler handler) {
        Generation answer = begin(request);
        Thread thread = new Thread(() -> stream(answer, handler), "djltp chat");
        thread.setDaemon(true);
        thread.start();
    }

    private void stream(Generation answer, StreamingChatResponseHandler handler) {
        Handle handle = new Handle();
        PartialResponseContext context = new PartialResponseContext(handle);
        try (answer) {
            while (answer.hasNext()) {
                String text = answer.next().text();
                if (!text.isEmpty()) {
                    handler.onPartialResponse(new PartialResponse(text), context);
                }
                if (handle.isCancelled()) {
                    return;
                }
            }
            handler.onCompleteResponse(response(answer));
        } catch (RuntimeException | Error e) {
            handler.onError(e);
        }
    }

    private static final class Handle implements StreamingHandle {

        private final AtomicBoolean cancelled = new AtomicBoolean();

        @Override
        public void cancel() {
            cancelled.set(true);
        }

        @Override
        public boolean isCancelled() {
            return cancelled.get();
        }
    }

    private Generation begin(ChatRequest request) {
        List<io.djltp.llm.ChatMessage> messages =
                request.messages().stream().map(GeneratorChatModel::message).toList();
        return generator.chat(messages, options(request.parameters()));
    }

    private static io.djltp.llm.ChatMessage message(ChatMessage message) {
        if (message instanceof SystemMessage system) {
            return new io.djltp.llm.ChatMessage("system", system.text());
        }
        if (message instanceof UserMessage user && user.hasSingleText()) {
            return new io.djltp.llm.ChatMessage("user", user.singleText());
        }
        if (message instanceof AiMessage ai && !ai.hasToolExecutionRequests()) {
            return new io.djltp.llm.ChatMessage(
                    "assistant", Objects.requireNonNullElse(ai.text(), ""));
        }
        throw new UnsupportedFeatureException(
                "Messages are texts of the system, the user or the model, not " + message);
    }

    private GenerationOptions options(ChatRequestParameters parameters) {
        checkAbsent("modelName", parameters.modelName());
        checkAbsent("frequencyPenalty", parameters.frequencyPenalty());
        checkAbsent("presencePenalty", parameters.presencePenalty());
        checkAbsent("toolChoice", parameters.toolChoice());
        if (!parameters.toolSpecifications().isEmpty()) {
            checkAbsent("toolSpecifications", parameters.toolSpecifications());
        }
        if (parameters.responseFormat() != null
                && parameters.responseFormat().type() != ResponseFormatType.TEXT) {
            checkAbsent("responseFormat", parameters.responseFormat());
        }
        GenerationOptions.Builder options = generator.getDefaults().toBuilder();
        if (parameters.temperature() != null) {
            options.optTemperature(parameters.temperature().floatValue());
        }
        if (parameters.topP() != null) {
            options.optTopP(parameters.topP().floatValue());
        }
        if (parameters.topK() != null) {
            options.optTopK(parameters.topK());
        }
        if (parameters.maxOutputTokens() != null) {
            options.optMaxTokens(parameters.maxOutputTokens());
        }
        if (!parameters.stopSequences().isEmpty()) {
            options.optStopStrings(parameters.stopSequences());
        }
        return options.build();
    }

    private static void checkAbsent(String name, @Nullable Object value) {
        if (value != null) {
            throw new UnsupportedFeatureException(
                    "The parameter %s is not supported: %s".formatted(name, value));
        }
    }

    private ChatResponse response(Generation answer) {
        boolean stopped = answer.getFinishReason(0) == GeneratedToken.FinishReason.STOP;
        return ChatResponse.builder()
                .aiMessage(AiMessage.from(answer.getText(0)))
                .metadata(
                        ChatResponseMetadata.builder()
                                .id(UUID.randomUUID().toString())
                                .modelName(
                                        String.valueOf(
                                                generator.getModel().getFolder().getFileName()))
                                .tokenUsage(
                                        new TokenUsage(
                                                answer.getPromptIds(0).length,
                                                answer.getIds(0).length))
                                .finishReason(stopped ? FinishReason.STOP : FinishReason.LENGTH)
                                .build())
                .build();
    }

    @Override
    public ChatRequestParameters defaultRequestParameters() {
        return defaults;
    }

    @Override
    public List<ChatModelListener> listeners() {
        return listeners;
    }

    @Override
    public ModelProvider provider() {
        return ModelProvider.OTHER;
    }

    @Override
    public Set<Capability> supportedCapabilities() {
        return Set.of();
    }
}
