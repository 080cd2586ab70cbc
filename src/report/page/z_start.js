startTheme();
showSummary();
showCurves();
showMask();
showMismatch();
showViewer();
showMore();
document.getElementById("footer").textContent = `Made ${DATA.made} by augur report.`;
