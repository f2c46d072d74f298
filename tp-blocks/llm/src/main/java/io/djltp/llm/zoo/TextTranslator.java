package io.djltp.llm.zoo;

import ai.djl.inference.streaming.StreamingTranslator;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.translate.Batchifier;
import ai.djl.translate.TranslatorContext;

import java.util.Iterator;
import java.util.List;
import java.util.function.Function;
import java.util.stream.Stream;

/**
 * Requests in, as the rows of an array, and what follows out.
 *
 * @param <I> the type of the input
 * @param <O> the type of the output
 * @param request makes the request of an input, see {@link LanguageModelBlock}
 * @param result makes the output of a row
 * @param streamed makes the output of pieces, as they come
 */
record TextTranslator<I, O>(
        Function<I, String> request,
        Function<NDArray, O> result,
        Function<Iterator<String>, O> streamed)
        implements StreamingTranslator<I, O> {

    /** Creates a translator whose output is one piece. */
    static <I, O> TextTranslator<I, O> of(
            Function<I, String> request, Function<NDArray, O> result) {
        return new TextTranslator<>(
                request,
                result,
                pieces -> {
                    throw new UnsupportedOperationException(
                            "Text streams with setTypes(String.class, IteratorBytesSupplier.class)");
                });
    }

    @Override
    public Batchifier getBatchifier() {
        return Batchifier.STACK; // of one row, where DJL streams
    }

    @Override
    public NDList processInput(TranslatorContext context, I input) {
        return new NDList(batchProcessInput(context, List.of(input)).head().get(0));
    }

    @Override
    public NDList batchProcessInput(TranslatorContext context, List<I> inputs) {
        List<String> requests = inputs.stream().map(request).toList();
        return new NDList(LanguageModelBlock.rows(requests, context.getNDManager()));
    }

    @Override
    public O processOutput(TranslatorContext context, NDList output) {
        return result.apply(output.head());
    }

    @Override
    public StreamOutput<O> processStreamOutput(TranslatorContext context, Stream<NDList> rows) {
        Iterator<NDList> all = rows.iterator();
        Iterator<String> pieces =
                new Iterator<>() {
                    @Override
                    public boolean hasNext() {
                        boolean more = all.hasNext();
                        if (!more) {
                            rows.close(); // and with it what DJL made for the request
                        }
                        return more;
                    }

                    @Override
                    public String next() {
                        try (NDList row = all.next()) {
                            return LanguageModelBlock.text(row.head());
                        }
                    }
                };
        return new StreamOutput<>() {
            @Override
            public O getIterativeOutputInternal() {
                return streamed.apply(pieces);
            }

            @Override
            protected O buildAsyncOutput() {
                throw new UnsupportedOperationException("Use getIterativeOutput");
            }

            @Override
            protected void computeAsyncOutputInternal(O output) {
                throw new UnsupportedOperationException("Use getIterativeOutput");
            }
        };
    }

    @Override
    public Support getSupport() {
        return Support.ITERATIVE;
    }
}
