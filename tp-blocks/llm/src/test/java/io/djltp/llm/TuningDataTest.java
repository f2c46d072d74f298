package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;

import io.djltp.llm.tune.TuningData;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** Lines of JSON as batches, against ids that were written by hand. */
public class TuningDataTest {

    private static final int HELLO = 259; // ByteTokenizer's "hello"
    private static final int NO = (int) TuningData.IGNORED;
    private static final int END = ByteTokenizer.END;

    private Path folder;
    private Path file;
    private LanguageModel model;

    @BeforeMethod
    public void open() throws Exception {
        folder = TestFolder.create();
        file = folder.resolve("texts.jsonl");
        RandomFolder.writeDecoder(folder, "'eos_token_id': 262");
        Files.writeString(
                folder.resolve("chat_template.jinja"),
                "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<|end|>{% endfor %}"
                        + "{% if add_generation_prompt %}a:{% endif %}");
        model = LanguageModel.load(folder);
    }

    @AfterMethod(alwaysRun = true)
    public void close() {
        model.close();
    }

    private TuningData.Builder data(String... lines) throws Exception {
        Files.writeString(file, String.join("\n", lines));
        return TuningData.builder().setFile(file).setModel(model).optSampling(1, false);
    }

    private static String text(String text) {
        return "{\"text\": \"" + text + "\"}";
    }

    private static String pair(String prompt, String completion) {
        return "{\"prompt\": \"%s\", \"completion\": \"%s\"}".formatted(prompt, completion);
    }

    private static String chat(String... messages) {
        return IntStream.range(0, messages.length / 2)
                .mapToObj(
                        i ->
                                "{\"role\": \"%s\", \"content\": \"%s\"}"
                                        .formatted(messages[2 * i], messages[2 * i + 1]))
                .collect(Collectors.joining(", ", "{\"messages\": [", "]}"));
    }

    @DataProvider
    public static Object[][] lines() {
        return new Object[][] {
            {text("hello a"), row(HELLO, ' ', 'a'), row(' ', 'a', END)},
            {text("hello<|end|>"), row(HELLO), row(END)}, // has one already
            {pair("hello ", "ab"), row(HELLO, ' ', 'a', 'b'), row(NO, 'a', 'b', END)},
            {pair("", "ab"), row('a', 'b'), row('b', END)},
            {pair("he", "llo"), row(HELLO), row(END)}, // a token of both has a loss: here no label
            {
                pair("\\ud83d\\ude00", "\u00fcx"), // four bytes, and one token of two bytes
                row(0xf0, 0x9f, 0x98, 0x80, 261, 'x'),
                row(NO, NO, NO, 261, 'x', END)
            },
            {
                chat("user", "b", "assistant", "c"),
                row('u', ':', 'b', END, 'a', ':', 'c'),
                row(NO, NO, NO, NO, NO, 'c', END)
            },
            {
                chat("system", "b", "assistant", "c", "user", "d", "assistant", "e"),
                row('s', ':', 'b', END, 'a', ':', 'c', END, 'u', ':', 'd', END, 'a', ':', 'e'),
                row(NO, NO, NO, NO, NO, 'c', END, NO, NO, NO, NO, NO, NO, 'e', END)
            },
        };
    }

    private static long[] row(int... tokens) {
        return Arrays.stream(tokens).asLongStream().toArray();
    }

    @Test(dataProvider = "lines", timeOut = 60_000)
    public void testTokens(String line, long[] ids, long[] labels) throws Exception {
        List<long[]> rows = rows(data("", line, " ").build(), 0);
        Assert.assertEquals(rows.size(), 2);
        Assert.assertEquals(rows.get(0), ids);
        Assert.assertEquals(rows.get(1), labels);
    }

    /** Returns ids and labels of the batches of an epoch, in turns. */
    private static List<long[]> rows(TuningData data, long firstBatch) throws Exception {
        List<long[]> rows = new ArrayList<>();
        try (NDManager manager = NDManager.newBaseManager()) {
            for (Batch batch : data.getData(manager, null, 0, firstBatch)) {
                rows.add(batch.getData().head().toLongArray());
                rows.add(batch.getLabels().singletonOrThrow().toLongArray());
                batch.close();
            }
        }
        return rows;
    }

    @Test(timeOut = 60_000)
    public void testTextsAreSplitAndPairsCut() throws Exception {
        TuningData data =
                data(text("abcde"), pair("ab", "cde"), pair("abcd", "e"), pair("a", "b"))
                        .optLength(3)
                        .optSampling(2, false)
                        .build();
        List<long[]> rows = rows(data, 0);
        Assert.assertEquals(rows.get(0), row('a', 'b', 'c', 'd', 'e', 0));
        Assert.assertEquals(rows.get(1), row('b', 'c', 'd', 'e', END, NO));
        Assert.assertEquals(rows.get(2), row('a', 'b', 'c', 'a', 'b', 0));
        Assert.assertEquals(rows.get(3), row(NO, 'c', 'd', 'b', END, NO));
        Assert.assertEquals(
                data.getCounts(), new TuningData.Counts(3, 4, 10, 9, 1, 1, 1), "of 4 lines");
        Assert.assertEquals(data.getBatches(), 2);
    }

    @Test(timeOut = 60_000)
    public void testPackedRowsHideOtherTexts() throws Exception {
        TuningData data =
                data(text("abc"), text("xy"), pair("d", "e"), text("f"))
                        .optLength(5)
                        .optPacked(true)
                        .optSampling(2, false)
                        .build();
        try (NDManager manager = NDManager.newBaseManager()) {
            Batch batch = data.getData(manager, null, 0, 0).iterator().next();
            Assert.assertEquals(
                    batch.getData().head().toLongArray(),
                    row('a', 'b', 'c', 'x', 'y', 'd', 'e', 'f', 0, 0));
            Assert.assertEquals(
                    batch.getLabels().head().toLongArray(),
                    row('b', 'c', END, 'y', END, 'e', END, END, NO, NO));
            NDArray mask = batch.getData().get(1);
            String seen =
                    IntStream.range(0, 50)
                            .mapToObj(i -> mask.toBooleanArray()[i] ? "1" : "0")
                            .collect(Collectors.joining());
            String first = "11100".repeat(3) + "00011".repeat(2);
            Assert.assertEquals(
                    seen, first + "11000".repeat(2) + "00100" + "00011".repeat(2), "mask");
        }
    }

    @Test(timeOut = 60_000)
    public void testLastBatchIsFilledUp() throws Exception {
        List<long[]> rows =
                rows(data(text("a"), text("b"), text("c")).optSampling(2, false).build(), 1);
        Assert.assertEquals(rows.get(0), row('c', 0));
        Assert.assertEquals(rows.get(1), row(END, NO));
    }

    @Test(timeOut = 60_000)
    public void testOrderFollowsFromSeedAndEpoch() throws Exception {
        String[] lines = new String[40];
        Arrays.setAll(lines, i -> text("x".repeat(1 + i % 7) + (char) ('0' + i)));
        for (boolean bucketed : new boolean[] {false, true}) {
            TuningData data = data(lines).optSampling(3, true).optBucketed(bucketed).build();
            List<long[]> all = rows(data, 0);
            List<long[]> rest = rows(data, 5);
            for (int i = 0; i < rest.size(); i++) {
                Assert.assertEquals(rest.get(i), all.get(10 + i), "batch " + i / 2);
            }
            Assert.assertEquals(
                    all.stream().flatMapToLong(Arrays::stream).filter(id -> id == END).count(),
                    lines.length);
            List<long[]> next = new ArrayList<>();
            try (NDManager manager = NDManager.newBaseManager()) {
                data.getData(manager);
                for (Batch batch : data.getData(manager)) { // the second epoch
                    next.add(batch.getData().head().toLongArray());
                }
            }
            Assert.assertFalse(Arrays.equals(next.get(0), all.get(0)));
        }
    }

    @Test(timeOut = 60_000)
    public void testSplit() throws Exception {
        String[] lines = new String[20];
        Arrays.setAll(lines, i -> text("abcd" + i));
        List<TuningData> parts = data(lines).optLength(4).build().split(0.1);
        Assert.assertEquals(parts.get(0).getCounts().texts(), 18);
        Assert.assertEquals(parts.get(1).getCounts().texts(), 2);
        Assert.assertEquals(rows(parts.get(1), 0).size(), 8); // both rows of a text
        Refusals.throwsArgument(
                () -> data(text("a")).build().split(0.5), "leaves none to train on");
    }

    @DataProvider
    public static Object[][] badLines() {
        return new Object[][] {
            {"{\"text\": \"a\"", "not an object of JSON"},
            {"[1]", "not an object of JSON"},
            {text("a") + "}", "not an object of JSON"},
            {"{'text': 'a'}", "not an object of JSON"},
            {"null", "not an object of JSON"},
            {"{\"content\": \"a\"}", "the fields [content]"},
            {"{\"text\": \"a\", \"prompt\": \"b\"}", "all of [text, prompt]"},
            {"{\"text\": 1}", "\"text\" is 1: it must be a string"},
            {text(""), "\"text\" is empty"},
            {"{\"prompt\": \"a\"}", "\"completion\" is missing"},
            {pair("a", ""), "\"completion\" is empty"},
            {"{\"messages\": \"a\"}", "it must be a list"},
            {"{\"messages\": [\"a\"]}", "the message \"a\" is no object"},
            {"{\"messages\": [{\"role\": \"user\"}]}", "\"content\" is missing"},
            {chat("bot", "a"), "the role \"bot\" is unknown: use one of [system, user, assistant"},
            {chat("user", "a"), "no message has the role \"assistant\""},
            {"{\"messages\": []}", "no message has the role \"assistant\""},
        };
    }

    @Test(dataProvider = "badLines", timeOut = 60_000)
    public void testBadLine(String line, String message) {
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class, () -> data(text("a"), "", line).build());
        Assert.assertTrue(e.getMessage().startsWith(file + ", line 3: "), e.getMessage());
        Assert.assertTrue(e.getMessage().contains(message), e.getMessage());
    }

    @Test(timeOut = 60_000)
    public void testBadData() throws Exception {
        check("has no text", data("", " "));
        check("begins within 2 tokens: shorten the prompts", data(pair("abc", "d")).optLength(2));
        check("from 1 to the 32 positions of the model, not 33", data(text("a")).optLength(33));
        check("greater than 0, not 0", data(text("a")).optSampling(0, false));
        Files.write(file, new byte[] {'{', (byte) 0xff, '}'});
        check("not UTF-8", TuningData.builder().setFile(file).setModel(model));
        Files.writeString(
                folder.resolve("chat_template.jinja"),
                "{% for m in messages %}{% if loop.last %}!{% endif %}{{ m.content }}{% endfor %}");
        model.close();
        model = LanguageModel.load(folder);
        check(
                "line 1: the chat template changes message 2 when others follow",
                data(chat("user", "a", "assistant", "b", "user", "c", "assistant", "d")));
        Files.writeString(
                folder.resolve("chat_template.jinja"),
                "{% for m in messages %}{{ m.content }}{% endfor %}"
                        + "{% if add_generation_prompt %}<think>{% endif %}");
        model.close();
        model = LanguageModel.load(folder);
        check(
                "line 1: the chat template begins message 2 with other characters",
                data(chat("user", "a", "assistant", "b")));
        Files.delete(folder.resolve("chat_template.jinja"));
        model.close();
        model = LanguageModel.load(folder);
        check("has no chat template", data(chat("user", "a", "assistant", "b")));
    }

    private static void check(String message, TuningData.Builder builder) {
        Refusals.throwsArgument(builder::build, message);
    }
}
