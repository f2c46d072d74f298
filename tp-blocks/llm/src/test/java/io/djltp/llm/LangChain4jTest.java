package io.djltp.llm;

import dev.langchain4j.agent.tool.ToolSpecification;
import dev.langchain4j.data.message.ImageContent;
import dev.langchain4j.data.message.UserMessage;
import dev.langchain4j.data.segment.TextSegment;
import dev.langchain4j.exception.UnsupportedFeatureException;
import dev.langchain4j.memory.chat.MessageWindowChatMemory;
import dev.langchain4j.model.chat.request.ChatRequest;
import dev.langchain4j.model.chat.request.ChatRequestParameters;
import dev.langchain4j.model.chat.request.ResponseFormat;
import dev.langchain4j.model.chat.response.ChatResponse;
import dev.langchain4j.model.chat.response.PartialResponse;
import dev.langchain4j.model.chat.response.PartialResponseContext;
import dev.langchain4j.model.chat.response.StreamingChatResponseHandler;
import dev.langchain4j.model.output.FinishReason;
import dev.langchain4j.service.AiServices;
import dev.langchain4j.service.SystemMessage;
import dev.langchain4j.service.TokenStream;

import io.djltp.llm.langchain4j.EmbedderEmbeddingModel;
import io.djltp.llm.langchain4j.GeneratorChatModel;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** LangChain4j's own services over a generator give what the generator gives. */
public class LangChain4jTest {

    private static final int TOKENS = 30;

    private final Path folder = TestFolder.create();
    private Generator generator;
    private GeneratorChatModel model;

    @BeforeClass
    public void write() throws Exception {
        RandomFolder.writeDecoder(folder, "'max_position_embeddings': 400");
        Files.writeString(
                folder.resolve("chat_template.jinja"),
                "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
                        + "{% if add_generation_prompt %}assistant:{% endif %}");
    }

    @BeforeMethod
    public void open() throws Exception {
        generator = Generator.builder().setPath(folder).optBatch(4).build();
        model =
                new GeneratorChatModel(
                        generator,
                        ChatRequestParameters.builder().maxOutputTokens(TOKENS).build(),
                        List.of());
    }

    @AfterMethod(alwaysRun = true)
    public void close() {
        generator.close();
    }

    private Generation expected(String prompt, int tokens) {
        GenerationOptions options =
                generator.getDefaults().toBuilder().optMaxTokens(tokens).build();
        Generation text = generator.generateIds(List.of(generator.encodeChat(prompt)), options);
        text.finish();
        return text;
    }

    /** A service that LangChain4j implements. */
    interface Assistant {

        @SystemMessage("be kind")
        String chat(String message);
    }

    /** A service that streams. */
    interface StreamingAssistant {

        TokenStream chat(String message);
    }

    @Test(timeOut = 60_000)
    public void testServiceWithMemory() {
        Assistant assistant =
                AiServices.builder(Assistant.class)
                        .chatModel(model)
                        .chatMemory(MessageWindowChatMemory.withMaxMessages(10))
                        .build();
        String prompt = "system: be kind<|end|>user: hello<|end|>assistant:";
        String first = expected(prompt, TOKENS).getText(0);
        Assert.assertFalse(first.isEmpty());
        Assert.assertEquals(assistant.chat("hello"), first);
        prompt += " " + first + "<|end|>user: more<|end|>assistant:";
        Assert.assertEquals(assistant.chat("more"), expected(prompt, TOKENS).getText(0));
    }

    @Test(timeOut = 60_000)
    public void testServiceStreams() throws Exception {
        StreamingAssistant assistant =
                AiServices.builder(StreamingAssistant.class).streamingChatModel(model).build();
        List<String> pieces = Collections.synchronizedList(new ArrayList<>());
        CompletableFuture<ChatResponse> response = new CompletableFuture<>();
        assistant
                .chat("hello")
                .onPartialResponse(pieces::add)
                .onCompleteResponse(response::complete)
                .onError(response::completeExceptionally)
                .start();
        ChatResponse answer = response.get();
        Generation expected = expected("user: hello<|end|>assistant:", TOKENS);
        Assert.assertTrue(pieces.size() > 1, pieces.toString());
        Assert.assertEquals(String.join("", pieces), expected.getText(0));
        Assert.assertEquals(answer.aiMessage().text(), expected.getText(0));
        Assert.assertEquals(answer.tokenUsage().inputTokenCount(), expected.getPromptIds(0).length);
        Assert.assertEquals(answer.tokenUsage().outputTokenCount(), TOKENS);
        Assert.assertEquals(answer.finishReason(), FinishReason.LENGTH);
        Assert.assertEquals(answer.modelName(), folder.getFileName().toString());
    }

    @Test(timeOut = 60_000)
    public void testParameters() {
        String text = expected("user: hello<|end|>assistant:", TOKENS).getText(0);
        String stop = text.substring(1, 2);
        ChatResponse answer =
                model.chat(
                        ChatRequest.builder()
                                .messages(UserMessage.from("hello"))
                                .temperature(0.0)
                                .topK(5)
                                .topP(0.5)
                                .stopSequences(List.of(stop))
                                .build());
        Assert.assertEquals(answer.finishReason(), FinishReason.STOP);
        Assert.assertEquals(answer.aiMessage().text(), text.substring(0, text.indexOf(stop)));
    }

    /** A handler that cancels, and one that throws, leave nothing behind. */
    @Test(timeOut = 60_000)
    public void testCancels() throws Exception {
        for (boolean fails : new boolean[] {false, true}) {
            CountDownLatch failed = new CountDownLatch(1);
            List<String> pieces = Collections.synchronizedList(new ArrayList<>());
            model.chat(
                    ChatRequest.builder()
                            .messages(UserMessage.from("hello"))
                            .maxOutputTokens(300)
                            .build(),
                    new StreamingChatResponseHandler() {
                        @Override
                        public void onPartialResponse(
                                PartialResponse piece, PartialResponseContext context) {
                            pieces.add(piece.text());
                            if (fails) {
                                throw new IllegalStateException("no more");
                            }
                            context.streamingHandle().cancel();
                        }

                        @Override
                        public void onCompleteResponse(ChatResponse response) {
                            pieces.add("complete");
                        }

                        @Override
                        public void onError(Throwable error) {
                            failed.countDown();
                        }
                    });
            while (pieces.isEmpty() || generator.getRunning() > 0) {
                Thread.sleep(5);
            }
            Assert.assertEquals(pieces.size(), 1, pieces.toString());
            Assert.assertEquals(
                    failed.await(fails ? Long.MAX_VALUE : 50, TimeUnit.MILLISECONDS), fails);
        }
    }

    @DataProvider
    public static Object[][] unsupported() {
        ChatRequest.Builder[] requests = new ChatRequest.Builder[5];
        for (int i = 0; i < requests.length; i++) {
            requests[i] = ChatRequest.builder().messages(UserMessage.from("hello"));
        }
        return new Object[][] {
            {requests[0].toolSpecifications(ToolSpecification.builder().name("t").build()), "tool"},
            {requests[1].responseFormat(ResponseFormat.JSON), "responseFormat"},
            {requests[2].presencePenalty(0.5), "presencePenalty"},
            {requests[3].modelName("other"), "modelName"},
            {
                requests[4].messages(UserMessage.from(ImageContent.from("file:///none.png"))),
                "Messages are texts"
            },
        };
    }

    @Test(dataProvider = "unsupported", timeOut = 60_000)
    public void testUnsupported(ChatRequest.Builder request, String message) {
        Refusals.expect(
                UnsupportedFeatureException.class, () -> model.chat(request.build()), message);
    }

    @Test(timeOut = 60_000)
    public void testTooLong() {
        Refusals.throwsArgument(() -> model.chat("x".repeat(500)), "room for 400");
    }

    @Test(timeOut = 60_000)
    public void testEmbeddings() throws Exception {
        Path vectors = folder.resolve("vectors");
        RandomFolder.writeEncoder(vectors);
        try (Embedder embedder = Embedder.load(vectors, ParallelConfig.tensor(2))) {
            EmbedderEmbeddingModel embeddings = new EmbedderEmbeddingModel(embedder);
            List<float[]> expected = embedder.embed(List.of("hello", "you"));
            Assert.assertEquals(embeddings.dimension(), 20);
            float[] one = embeddings.embed("hello").content().vector();
            float[] other =
                    embeddings
                            .embedAll(List.of(TextSegment.from("hello"), TextSegment.from("you")))
                            .content()
                            .get(1)
                            .vector();
            for (int i = 0; i < 20; i++) {
                Assert.assertEquals(one[i], expected.get(0)[i], 1e-6);
                Assert.assertEquals(other[i], expected.get(1)[i], 1e-6);
            }
        }
    }
}
