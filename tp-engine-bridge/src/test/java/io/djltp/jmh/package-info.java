/** A benchmark of Adam, with JMH. It is no test. */
package io.djltp.jmh;
