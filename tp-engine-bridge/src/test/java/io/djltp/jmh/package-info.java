/** Benchmarks of small pieces, with JMH. They are not tests: see docs/performance.md. */
package io.djltp.jmh;
