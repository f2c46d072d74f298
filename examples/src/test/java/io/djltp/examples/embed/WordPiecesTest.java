package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;

import io.djltp.zoo.WordPieces;

import org.testng.annotations.Test;

import java.io.IOException;
import java.util.List;

/** Texts become the numbers that the model was trained with. */
public class WordPiecesTest {

    private static final long CLS = 101;
    private static final long SEP = 102;

    private static WordPieces.Batch cut(String... texts) throws IOException {
        try (WordPieces pieces = WordPieces.load()) {
            return pieces.cut(List.of(texts));
        }
    }

    @Test(timeOut = 60_000)
    public void theNumbersAreThoseOfBert() throws IOException {
        // "hello world" and "tokenization" of bert-base-uncased, as in Hugging Face's documentation
        WordPieces.Batch batch = cut("Hello, World!", "hello");
        assertEquals(batch.ids()[0], new long[] {CLS, 7592, 1010, 2088, 999, SEP});
        assertEquals(batch.ids()[1], new long[] {CLS, 7592, SEP, 0, 0, 0});
        assertEquals(batch.mask()[0], new long[] {1, 1, 1, 1, 1, 1});
        assertEquals(batch.mask()[1], new long[] {1, 1, 1, 0, 0, 0});
    }

    @Test(timeOut = 60_000)
    public void aLongTextIsCutOff() throws IOException {
        WordPieces.Batch batch = cut("word ".repeat(WordPieces.LONGEST - 2), "word ".repeat(1000));
        assertEquals(batch.ids()[1].length, WordPieces.LONGEST);
        assertEquals(batch.ids()[1], batch.ids()[0]);
        assertEquals(batch.ids()[1][WordPieces.LONGEST - 1], SEP);
        assertEquals(batch.mask()[1], batch.mask()[0]);
    }
}
