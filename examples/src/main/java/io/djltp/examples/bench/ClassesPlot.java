package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.bench.BenchTable.BenchRow;

import org.knowm.xchart.BitmapEncoder;
import org.knowm.xchart.XYChart;
import org.knowm.xchart.XYChartBuilder;
import org.knowm.xchart.style.Styler.LegendPosition;

import java.awt.Color;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.ToDoubleFunction;

/** A chart of time and memory against classes, both axes logarithmic. */
final class ClassesPlot {

    private static final int WIDTH = 640;
    private static final int HEIGHT = 480;

    private final List<BenchRow> rows;

    /**
     * Prepares a chart.
     *
     * @param rows what was measured
     */
    ClassesPlot(List<BenchRow> rows) {
        this.rows =
                rows.stream().sorted(Comparator.comparingInt(row -> row.workload.units())).toList();
    }

    /**
     * Draws the chart.
     *
     * @param file the PNG file
     * @throws IOException if it cannot be written
     */
    void save(Path file) throws IOException {
        System.setProperty("java.awt.headless", "true"); // there may be no screen
        try (OutputStream out = new BufferedOutputStream(Files.newOutputStream(file))) {
            BitmapEncoder.saveBitmap(
                    List.of(time(), memory()), 1, 2, out, BitmapEncoder.BitmapFormat.PNG);
        } catch (LinkageError | InternalError e) {
            throw new BadInputException(
                    "--plot cannot draw without fonts (" + e + "): install fontconfig and a font",
                    e);
        }
    }

    private XYChart time() {
        XYChart chart = chart("time of a step", "seconds");
        Lines lines = new Lines();
        for (BenchRow row : rows) {
            lines.add(name("ours", row), row, each -> each.oursSeconds);
            lines.add("stock DJL, " + row.optimizer, row, each -> value(each.stockSeconds));
            lines.add("floor, " + row.optimizer, row, each -> each.floorSeconds);
        }
        lines.draw(chart);
        return chart;
    }

    private XYChart memory() {
        XYChart chart = chart("peak resident memory", "MB");
        Lines lines = new Lines();
        for (BenchRow row : rows) {
            lines.add(name("ours", row), row, each -> each.oursBytes / 1e6);
            lines.add("stock DJL, " + row.optimizer, row, each -> value(each.stockBytes) / 1e6);
            lines.add(
                    "weights and state, " + row.optimizer, row, each -> each.weightsAndState / 1e6);
        }
        lines.draw(chart);
        return chart;
    }

    private static double value(Number number) {
        return number == null ? Double.NaN : number.doubleValue();
    }

    private static String name(String side, BenchRow row) {
        String ranks = row.ranks == 1 ? "rank" : "ranks";
        return "%s, %s, %d %s".formatted(side, row.optimizer, row.ranks, ranks);
    }

    private static XYChart chart(String title, String unit) {
        XYChart chart =
                new XYChartBuilder()
                        .width(WIDTH)
                        .height(HEIGHT)
                        .title(title)
                        .xAxisTitle("classes")
                        .yAxisTitle(unit)
                        .build();
        chart.getStyler().setChartBackgroundColor(Color.WHITE);
        chart.getStyler().setXAxisLogarithmic(true);
        chart.getStyler().setYAxisLogarithmic(true);
        chart.getStyler().setLegendPosition(LegendPosition.InsideNW);
        return chart;
    }

    /** Lines of points, in the order in which they were begun. */
    private static final class Lines {

        private final Map<String, Map<Double, Double>> points = new LinkedHashMap<>();

        void add(String name, BenchRow row, ToDoubleFunction<BenchRow> value) {
            double y = value.applyAsDouble(row);
            if (!Double.isNaN(y)) {
                points.computeIfAbsent(name, key -> new LinkedHashMap<>())
                        .put((double) row.workload.units(), y);
            }
        }

        void draw(XYChart chart) {
            points.forEach(
                    (name, line) ->
                            chart.addSeries(
                                    name,
                                    new ArrayList<>(line.keySet()),
                                    new ArrayList<>(line.values())));
        }
    }
}
