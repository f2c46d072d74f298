/** The options that show a run while it goes on. */
package io.djltp.examples.report;
