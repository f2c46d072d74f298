package io.djltp.examples.generate;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.MalformedModelException;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.Tp;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.examples.train.TrainingJob;
import io.djltp.internal.job.SignalListener;
import io.djltp.job.Job;
import io.djltp.llm.ChatMessage;
import io.djltp.llm.ChatTemplate;
import io.djltp.llm.GeneratedToken.FinishReason;
import io.djltp.llm.Generation;
import io.djltp.llm.GenerationOptions;
import io.djltp.llm.Generator;
import io.djltp.llm.LanguageModel;
import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.function.Supplier;

/** Generates text with a language model of a Hugging Face folder, cut over ranks. */
@Command(
        name = "generate",
        description =
                "Generates text after a prompt with a language model of a Hugging Face folder,"
                        + " whose weights are cut over ranks."
                        + " Without a prompt, reads the messages of a chat from standard input.",
        mixinStandardHelpOptions = true)
public final class GenerateCommand implements Callable<Integer> {

    @Mixin private GenerateOptions options;

    /** Creates the command; its options are set by the command line. */
    public GenerateCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        options.check();
        try (LanguageModel model = options.model.open()) {
            int ranks = options.model.ranks(model);
            try (Job job = options.model.where.join(ranks)) {
                options.model.where.checkDevices(job, ranks);
                run(model, job, ranks);
            }
        }
        return 0;
    }

    private void run(LanguageModel model, @Nullable Job job, int ranks) throws IOException {
        PrintStream out = TrainingJob.out(job);
        boolean first = job == null || job.getProcess() == 0;
        ParallelConfig config = options.model.config(job, ranks);
        checkFiles(model); // before the weights are read
        GenerationOptions how = check(() -> options.of(model));
        try (Generator generator = generator(model, config)) {
            if (options.isChat()) {
                chat(out, generator, how);
                return;
            }
            int[] ids = check(() -> options.prompt(generator));
            Generation text = check(() -> generator.generateIds(List.of(ids), how));
            boolean words = model.getTokenizer() != null;
            print(out, text, words);
            print(out, generator, text);
            if (first) {
                GeneratedText result =
                        new GeneratedText(
                                ids,
                                text.getIds(0),
                                ranks,
                                options.model.weights.toString(),
                                generator.getKernel(),
                                generator.getBytes());
                FinishReason reason = text.getFinishReason(0);
                result.finishReason =
                        reason == null ? null : reason.name().toLowerCase(Locale.ROOT);
                result.text = words ? text.getText(0) : null;
                result.prefill = text.getPrefillSeconds();
                result.decode = text.getDecodeSeconds();
                result.logits = options.logits ? generator.getLogits(ids) : null;
                JsonFile.write(options.json, result);
            }
        }
    }

    private void checkFiles(LanguageModel model) {
        boolean asChat = options.isChat() || options.chat;
        if (asChat && check(model::getChatTemplate) == null) {
            throw new BadInputException(
                    "There is no chat template in %s, neither chat_template.jinja nor chat_template"
                            + " of tokenizer_config.json: give a prompt, -p \"...\" or --ids 1,2,3,"
                            + " without --chat",
                    model.getFolder());
        }
        boolean asText = options.ids == null || !options.stops.isEmpty();
        if (asText && model.getTokenizer() == null) {
            throw new BadInputException(
                    "There is no tokenizer.json in %s: add that file, or give the prompt as --ids"
                            + " 1,2,3, without --stop",
                    model.getFolder());
        }
    }

    /** Answers the lines of standard input. At Ctrl-C an answer ends, and between them the chat. */
    @SuppressWarnings("try") // a listener is used by being open
    private void chat(PrintStream out, Generator generator, GenerationOptions how)
            throws IOException {
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<ChatMessage> messages = options.messages();
        long seed = options.seed;
        String commands = "/reset begins a new chat, /exit ends. Ctrl-C ends an answer.";
        out.println("Write a message. " + commands);
        while (true) {
            out.print("> ");
            out.flush();
            String line = in.readLine();
            if (line == null || line.strip().equals("/exit")) {
                return;
            }
            if (line.strip().equals("/reset")) {
                messages = options.messages();
            } else if (line.strip().matches("/\\w+")) {
                out.println(line.strip() + " is not known: " + commands);
            } else if (!line.isBlank()) {
                messages.add(new ChatMessage("user", line));
                GenerationOptions next = how.toBuilder().optSeed(seed++).build();
                try (Generation answer = generator.chat(messages, next);
                        SignalListener stop = new SignalListener("INT", n -> answer.close())) {
                    print(out, answer, true);
                    messages.add(new ChatMessage("assistant", answer.getText(0)));
                } catch (IllegalArgumentException e) { // too long, or not a chat of this template
                    messages.remove(messages.size() - 1);
                    out.println(e.getMessage());
                }
            }
        }
    }

    private static void print(PrintStream out, Generation text, boolean words) {
        try {
            while (text.hasNext()) {
                var token = text.next();
                out.print(words ? token.text() : token.id() + " ");
                out.flush();
            }
        } catch (CancellationException e) {
            // by Ctrl-C, which leaves what there is
        }
        out.println();
    }

    private Generator generator(LanguageModel model, ParallelConfig config) throws IOException {
        try {
            return options.model.generator(model, config).build();
        } catch (IllegalArgumentException | MalformedModelException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    private static <T extends @Nullable Object> T check(Supplier<T> call) {
        return BadInputException.check("", call);
    }

    private void print(PrintStream out, Generator generator, Generation text) {
        out.printf(
                Locale.ROOT,
                "%n%s of the prompt in %.2f s, then %d in %.2f s: %.1f tokens a second%n",
                Tp.count(text.getPrefillTokens(), "token"),
                text.getPrefillSeconds(),
                text.getDecodeTokens(),
                text.getDecodeSeconds(),
                text.getDecodeTokens() / Math.max(1e-9, text.getDecodeSeconds()));
        out.printf(
                Locale.ROOT,
                "%s, %s weights by %s, %.1f MB a rank for weights and cache%n",
                Tp.count(generator.getRanks(), "rank"),
                options.model.weights,
                generator.getKernel(),
                generator.getBytes().get(0) / 1e6);
    }

    /** The options of {@link GenerateCommand}. */
    private static final class GenerateOptions {

        @Mixin private ModelOptions model;

        @Option(
                names = {"-p", "--prompt"},
                description = "The text that is continued.")
        private @Nullable String prompt;

        @Option(
                names = "--ids",
                split = ",",
                description = "The ids of the tokens that are continued, such as 1,15,7.")
        private int @Nullable [] ids;

        @Option(
                names = "--chat",
                description = "Make a chat of the prompt, by the chat template of the model.")
        private boolean chat;

        @Option(
                names = "--system",
                description = "The instructions that a chat begins with, if its template has any.")
        private @Nullable String system;

        @Option(
                names = "--tokens",
                defaultValue = "128",
                description = "The most tokens that are generated (${DEFAULT-VALUE}).")
        private int tokens;

        @Option(
                names = "--temperature",
                description =
                        "By what logits are divided; with 0 the likeliest token is chosen (that of"
                                + " generation_config.json).")
        private @Nullable Float temperature;

        @Option(
                names = "--top-k",
                description = "Among how many of the best tokens one is drawn; 0 for all.")
        private @Nullable Integer topK;

        @Option(
                names = "--top-p",
                description = "Which share of the probability the tokens have that are drawn from.")
        private @Nullable Float topP;

        @Option(
                names = "--min-p",
                description = "Which share of the largest probability a token must have.")
        private @Nullable Float minP;

        @Option(
                names = "--repetition-penalty",
                description = "How much less likely tokens become that were there before.")
        private @Nullable Float penalty;

        @Option(
                names = "--seed",
                defaultValue = "0",
                description =
                        "What drawn tokens follow from (${DEFAULT-VALUE}). In a chat, each answer"
                                + " adds 1.")
        private long seed;

        @Option(names = "--stop", description = "A text that ends the generated one; repeatable.")
        private List<String> stops = new ArrayList<>();

        @Option(names = "--json", description = "File to write tokens, text and times to.")
        private @Nullable Path json;

        @Option(
                names = "--logits",
                description = "Write the logits after the prompt to the file, too.")
        private boolean logits;

        /** Checks what can be checked before the model is opened. */
        void check() {
            positive("--tokens", tokens);
            JsonFile.check("--json", json);
            model.check();
            if (prompt != null && ids != null) {
                throw new BadInputException(
                        "Give the prompt as a text, -p \"...\", or as --ids 1,2,3, or leave both out"
                                + " for a chat");
            }
            if ((chat || system != null && !isChat()) && (prompt == null || !chat)) {
                throw new BadInputException("--chat needs a prompt, -p, and --system needs --chat");
            }
            if (isChat() && (json != null || DeviceOptions.processes() > 1)) {
                throw new BadInputException(
                        "A chat is for one process and writes no --json: give a prompt, -p \"...\"");
            }
            if (logits && json == null) {
                throw new BadInputException("--logits need --json FILE to be written to");
            }
            if (logits && DeviceOptions.processes() > 1) {
                throw new BadInputException("--logits are those of one process: leave them out");
            }
        }

        /** Returns whether there is no prompt. */
        boolean isChat() {
            return prompt == null && ids == null;
        }

        /** Returns what a chat begins with. */
        List<ChatMessage> messages() {
            List<ChatMessage> messages = new ArrayList<>();
            if (system != null) {
                messages.add(new ChatMessage("system", system));
            }
            return messages;
        }

        /** Returns the ids of the prompt. */
        int[] prompt(Generator generator) {
            if (ids != null) {
                return ids;
            }
            String text = prompt == null ? "" : prompt;
            ChatTemplate template = chat ? generator.getModel().getChatTemplate() : null;
            if (template == null) {
                return generator.encode(text);
            }
            List<ChatMessage> messages = messages();
            messages.add(new ChatMessage("user", text));
            return generator.encodeChat(template.render(messages, true));
        }

        /** Returns how tokens are chosen: as the model says, but for what was given. */
        GenerationOptions of(LanguageModel model) {
            GenerationOptions.Builder builder = model.getGenerationOptions().toBuilder();
            builder.optMaxTokens(tokens).optSeed(seed);
            Optional.ofNullable(temperature).ifPresent(builder::optTemperature);
            Optional.ofNullable(topK).ifPresent(builder::optTopK);
            Optional.ofNullable(topP).ifPresent(builder::optTopP);
            Optional.ofNullable(minP).ifPresent(builder::optMinP);
            Optional.ofNullable(penalty).ifPresent(builder::optRepetitionPenalty);
            return stops.isEmpty() ? builder.build() : builder.optStopStrings(stops).build();
        }
    }
}
