package io.djltp.llm.serve;

import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.JsonValue;
import com.openai.core.http.StreamResponse;
import com.openai.errors.BadRequestException;
import com.openai.errors.NotFoundException;
import com.openai.errors.UnauthorizedException;
import com.openai.models.chat.completions.ChatCompletion;
import com.openai.models.chat.completions.ChatCompletionChunk;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionStreamOptions;
import com.openai.models.chat.completions.ChatCompletionTokenLogprob;
import com.openai.models.completions.CompletionChoice;
import com.openai.models.completions.CompletionCreateParams;
import com.openai.models.embeddings.EmbeddingCreateParams;

import dev.langchain4j.exception.InvalidRequestException;
import dev.langchain4j.model.chat.response.ChatResponse;
import dev.langchain4j.model.chat.response.StreamingChatResponseHandler;
import dev.langchain4j.model.openai.OpenAiChatModel;
import dev.langchain4j.model.openai.OpenAiEmbeddingModel;
import dev.langchain4j.model.openai.OpenAiStreamingChatModel;

import io.djltp.llm.ChatMessage;
import io.djltp.llm.Embedder;
import io.djltp.llm.GeneratedToken;
import io.djltp.llm.Generation;
import io.djltp.llm.GenerationOptions;
import io.djltp.llm.RandomFolder;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Clients of others: OpenAI's own for Java, and LangChain4j's. */
public class ClientsTest {

    private static final String KEY = "secret";
    private static final int TOKENS = 20;
    private static final ChatCompletionCreateParams.LogitBias BIAS =
            ChatCompletionCreateParams.LogitBias.builder()
                    .putAdditionalProperty("5", JsonValue.from(9))
                    .build();

    private ServedModel served;
    private String expected;

    @BeforeMethod
    public void start() throws Exception {
        served = ServedModel.start(2, 4, builder -> builder.optApiKey(KEY));
        GenerationOptions options =
                served.generator.getDefaults().toBuilder()
                        .optMaxTokens(TOKENS)
                        .optTemperature(0.8f)
                        .optSeed(7)
                        .build();
        try (Generation text =
                served.generator.chat(List.of(new ChatMessage("user", "hello")), options)) {
            expected = text.finish().get(0);
        }
    }

    @AfterMethod(alwaysRun = true)
    public void stop() {
        served.close();
    }

    private String url() {
        return "http://127.0.0.1:" + served.server.getPort() + "/v1";
    }

    private OpenAIClient client(String key) {
        return OpenAIOkHttpClient.builder().baseUrl(url()).apiKey(key).maxRetries(0).build();
    }

    private static ChatCompletionCreateParams.Builder chat() {
        return ChatCompletionCreateParams.builder()
                .model("small")
                .addUserMessage("hello")
                .maxCompletionTokens(TOKENS)
                .temperature(0.8)
                .putAdditionalBodyProperty("seed", JsonValue.from(7));
    }

    @Test(timeOut = 120_000)
    public void openAiChats() {
        OpenAIClient client = client(KEY);
        ChatCompletion whole = client.chat().completions().create(chat().n(2).build());
        Assert.assertEquals(whole.choices().size(), 2);
        Assert.assertEquals(whole.choices().get(0).message().content().get(), expected);
        Assert.assertFalse(whole.choices().get(0).finishReason().toString().isEmpty());
        StringBuilder text = new StringBuilder();
        List<Long> totals = new ArrayList<>();
        ChatCompletionCreateParams params =
                chat().streamOptions(
                                ChatCompletionStreamOptions.builder().includeUsage(true).build())
                        .build();
        try (StreamResponse<ChatCompletionChunk> chunks =
                client.chat().completions().createStreaming(params)) {
            chunks.stream()
                    .forEach(
                            chunk -> {
                                chunk.usage().ifPresent(usage -> totals.add(usage.totalTokens()));
                                chunk.choices()
                                        .forEach(
                                                choice ->
                                                        choice.delta()
                                                                .content()
                                                                .ifPresent(text::append));
                            });
        }
        Assert.assertEquals(text.toString(), expected);
        Assert.assertEquals(totals.size(), 1);
        long one = whole.usage().get().completionTokens();
        Assert.assertTrue(totals.get(0) <= whole.usage().get().totalTokens() && one > 0);
        client.close();
    }

    @Test(timeOut = 120_000)
    public void openAiCompletesAndLists() {
        OpenAIClient client = client(KEY);
        CompletionCreateParams params =
                CompletionCreateParams.builder()
                        .model("small")
                        .promptOfArrayOfStrings(List.of("hello", "you"))
                        .maxTokens(5)
                        .build();
        Assert.assertEquals(client.completions().create(params).choices().size(), 2);
        Assert.assertEquals(client.models().list().data().get(0).id(), "small");
        Assert.assertEquals(client.models().retrieve("small").id(), "small");
        NotFoundException missing =
                Assert.expectThrows(NotFoundException.class, () -> client.models().retrieve("a/b"));
        Assert.assertEquals(missing.code().get(), "model_not_found");
        BadRequestException wrong =
                Assert.expectThrows(
                        BadRequestException.class,
                        () -> client.chat().completions().create(chat().logitBias(BIAS).build()));
        Assert.assertEquals(wrong.param().get(), "logit_bias");
        Assert.assertTrue(wrong.getMessage().contains("not supported"), wrong.getMessage());
        BadRequestException large =
                Assert.expectThrows(
                        BadRequestException.class,
                        () ->
                                client.chat()
                                        .completions()
                                        .create(chat().maxCompletionTokens(9999).build()));
        Assert.assertEquals(large.code().get(), "context_length_exceeded");
        client.close();
        OpenAIClient stranger = client("other");
        Assert.expectThrows(UnauthorizedException.class, () -> stranger.models().list());
        stranger.close();
    }

    /** Whole and as events, for chats and completions: the generator's own. */
    @Test(timeOut = 120_000)
    public void openAiGetsLogProbabilities() {
        GenerationOptions options =
                served.generator.getDefaults().toBuilder()
                        .optMaxTokens(TOKENS)
                        .optTemperature(0.8f)
                        .optSeed(7)
                        .optLogProbabilities(3)
                        .build();
        List<Double> own = new ArrayList<>();
        List<Double> best = new ArrayList<>();
        try (Generation text =
                served.generator.chat(List.of(new ChatMessage("user", "hello")), options)) {
            while (text.hasNext()) {
                GeneratedToken token = text.next();
                if (!options.getStopTokens().contains(token.id())) {
                    own.add(token.logProbabilities().get(0).value());
                    best.add(token.logProbabilities().get(1).value());
                }
            }
        }
        OpenAIClient client = client(KEY);
        ChatCompletionCreateParams params = chat().logprobs(true).topLogprobs(3).build();
        List<ChatCompletionTokenLogprob> whole =
                client.chat()
                        .completions()
                        .create(params)
                        .choices()
                        .get(0)
                        .logprobs()
                        .flatMap(ChatCompletion.Choice.Logprobs::content)
                        .get();
        List<ChatCompletionTokenLogprob> events = new ArrayList<>();
        try (StreamResponse<ChatCompletionChunk> chunks =
                client.chat().completions().createStreaming(params)) {
            chunks.stream()
                    .flatMap(chunk -> chunk.choices().get(0).logprobs().stream())
                    .forEach(each -> events.addAll(each.content().get()));
        }
        Assert.assertEquals(events, whole);
        Assert.assertEquals(whole.stream().map(ChatCompletionTokenLogprob::logprob).toList(), own);
        for (int i = 0; i < own.size(); i++) {
            Assert.assertEquals(whole.get(i).topLogprobs().size(), 3);
            Assert.assertEquals(whole.get(i).topLogprobs().get(0).logprob(), best.get(i));
        }
        CompletionChoice.Logprobs completion =
                client.completions()
                        .create(
                                CompletionCreateParams.builder()
                                        .model("small")
                                        .prompt("hello")
                                        .maxTokens(5)
                                        .logprobs(2)
                                        .build())
                        .choices()
                        .get(0)
                        .logprobs()
                        .get();
        int count = completion.tokens().get().size();
        Assert.assertTrue(count > 0);
        Assert.assertEquals(completion.tokenLogprobs().get().size(), count);
        Assert.assertEquals(completion.topLogprobs().get().size(), count);
        Assert.assertEquals(completion.textOffset().get().get(0), Long.valueOf(0));
        client.close();
    }

    @Test(timeOut = 120_000)
    public void langChainChats() throws Exception {
        OpenAiChatModel model =
                OpenAiChatModel.builder()
                        .baseUrl(url())
                        .apiKey(KEY)
                        .modelName("small")
                        .maxTokens(TOKENS)
                        .temperature(0.8)
                        .seed(7)
                        .maxRetries(0)
                        .build();
        Assert.assertEquals(model.chat("hello"), expected);
        OpenAiStreamingChatModel streaming =
                OpenAiStreamingChatModel.builder()
                        .baseUrl(url())
                        .apiKey(KEY)
                        .modelName("small")
                        .maxTokens(TOKENS)
                        .temperature(0.8)
                        .seed(7)
                        .build();
        StringBuilder pieces = new StringBuilder();
        CompletableFuture<ChatResponse> done = new CompletableFuture<>();
        streaming.chat(
                "hello",
                new StreamingChatResponseHandler() {
                    @Override
                    public void onPartialResponse(String piece) {
                        pieces.append(piece);
                    }

                    @Override
                    public void onCompleteResponse(ChatResponse response) {
                        done.complete(response);
                    }

                    @Override
                    public void onError(Throwable e) {
                        done.completeExceptionally(e);
                    }
                });
        Assert.assertEquals(done.get().aiMessage().text(), expected);
        Assert.assertEquals(pieces.toString(), expected);
        Assert.assertTrue(done.get().tokenUsage().outputTokenCount() > 0);
        OpenAiChatModel wrong =
                OpenAiChatModel.builder()
                        .baseUrl(url())
                        .apiKey(KEY)
                        .modelName("small")
                        .temperature(-1.0)
                        .maxRetries(0)
                        .build();
        Assert.expectThrows(InvalidRequestException.class, () -> wrong.chat("hello"));
    }

    /** Both clients get the vectors of an encoder, as numbers and as base64. */
    @Test(timeOut = 120_000)
    public void bothEmbed() throws Exception {
        Path folder = TestFolder.create();
        RandomFolder.writeEncoder(folder);
        List<String> texts = List.of("hello", "a longer text");
        ModelServer.Builder builder = ModelServer.builder().optName("small");
        builder.setEmbedder(() -> Embedder.load(folder, ParallelConfig.tensor(2)));
        try (Embedder embedder = Embedder.load(folder, ParallelConfig.tensor(1));
                ModelServer server = builder.build()) {
            server.start();
            String url = "http://127.0.0.1:" + server.getPort() + "/v1";
            List<float[]> vectors = embedder.embed(texts);
            OpenAIClient client =
                    OpenAIOkHttpClient.builder().baseUrl(url).apiKey("none").maxRetries(0).build();
            for (EmbeddingCreateParams.EncodingFormat format :
                    List.of(
                            EmbeddingCreateParams.EncodingFormat.FLOAT,
                            EmbeddingCreateParams.EncodingFormat.BASE64)) {
                var response =
                        client.embeddings()
                                .create(
                                        EmbeddingCreateParams.builder()
                                                .model("small")
                                                .inputOfArrayOfStrings(texts)
                                                .encodingFormat(format)
                                                .build());
                for (int i = 0; i < 2; i++) {
                    List<Float> found = response.data().get(i).embedding();
                    for (int j = 0; j < 20; j++) {
                        Assert.assertEquals(found.get(j), vectors.get(i)[j], 1e-5);
                    }
                }
                Assert.assertTrue(response.usage().promptTokens() > 2);
            }
            Refusals.expect(
                    BadRequestException.class,
                    () -> client.chat().completions().create(chat().build()),
                    "/v1/embeddings");
            var ids =
                    EmbeddingCreateParams.builder()
                            .model("small")
                            .inputOfArrayOfTokens(List.of(7L));
            Refusals.expect(
                    BadRequestException.class,
                    () -> client.embeddings().create(ids.build()),
                    "'input' must be text, a string or a list of strings, not 7");
            client.close();
            OpenAiEmbeddingModel model =
                    OpenAiEmbeddingModel.builder()
                            .baseUrl(url)
                            .apiKey("none")
                            .modelName("small")
                            .maxRetries(0)
                            .build();
            float[] found = model.embed("hello").content().vector();
            for (int j = 0; j < 20; j++) {
                Assert.assertEquals(found[j], vectors.get(0)[j], 1e-5f);
            }
        }
    }
}
