package io.djltp.llm;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.util.Utils;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

public class TextStreamTest {

    private Path folder;
    private HuggingFaceTokenizer tokenizer;

    @BeforeClass
    public void open() throws Exception {
        folder = Files.createTempDirectory("stream");
        ByteTokenizer.write(folder);
        tokenizer = HuggingFaceTokenizer.newInstance(folder.resolve("tokenizer.json"));
    }

    @AfterClass(alwaysRun = true)
    public void close() {
        tokenizer.close();
        Utils.deleteQuietly(folder);
    }

    @DataProvider
    public static Object[][] texts() {
        return new Object[][] {
            {"hello hello"},
            {"f\u00fcr \u4e16\u754c, \ud83d\ude00 and \ud83d\udc69\u200d\ud83d\udc67"},
            {" leading and trailing  "},
            {""},
        };
    }

    /** Byte by byte, no piece has half a character, and together they are the text. */
    @Test(dataProvider = "texts")
    public void charactersAreWhole(String text) {
        TextStream stream = new TextStream(tokenizer, List.of());
        StringBuilder all = new StringBuilder();
        for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
            String piece = stream.add(each & 0xff);
            Assert.assertFalse(piece.contains("\uFFFD"), piece);
            Assert.assertTrue(piece.isEmpty() || !Character.isLowSurrogate(piece.charAt(0)), piece);
            all.append(piece);
        }
        all.append(stream.finish());
        Assert.assertEquals(all.toString(), text);
        Assert.assertEquals(stream.getText(), text);
    }

    /** The first stop string ends the text; what may begin one is held back. */
    @Test
    public void stopStringsAreNoPartOfTheText() {
        TextStream stream = new TextStream(tokenizer, List.of("END", "stop", "\n\n"));
        StringBuilder all = new StringBuilder();
        String text = "an EN or a sto\nsto\nENstop here END";
        for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
            String piece = stream.add(each & 0xff);
            all.append(piece);
            if (stream.isStopped()) {
                break;
            }
        }
        all.append(stream.finish());
        Assert.assertTrue(stream.isStopped());
        Assert.assertEquals(all.toString(), "an EN or a sto\nsto\nEN");
    }

    /** What was held back comes at the end, but not half a character. */
    @Test
    public void theEndGivesWhatIsLeft() {
        TextStream stream = new TextStream(tokenizer, List.of("xyz"));
        Assert.assertEquals(stream.add('a'), "a");
        Assert.assertEquals(stream.add('x'), "");
        Assert.assertEquals(stream.add(0xC3), "");
        Assert.assertEquals(stream.finish(), "x");
        Assert.assertFalse(stream.isStopped());
    }

    @Test
    public void withoutTokenizerThereIsNoText() {
        TextStream stream = new TextStream(null, List.of());
        Assert.assertEquals(stream.add(3), "");
        Assert.assertEquals(stream.finish(), "");
    }
}
